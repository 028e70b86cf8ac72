"""The conformance suite with fakeredis, as in users' unit tests: no sockets, no server."""

from __future__ import annotations

import fakeredis
import pytest

from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread


class OnFakeredis(LockBackendConformance):
    @pytest.fixture
    def server(self):
        return fakeredis.FakeServer()

    @pytest.fixture
    def waiter(self):
        pytest.skip("nobody can be woken without a socket")

    @pytest.fixture
    def health(self):
        pytest.skip("fakeredis has no INFO")

    @pytest.fixture
    def outage(self, server):
        def disconnect():
            server.connected = False

        return disconnect


class TestBlocking(OnFakeredis):
    @pytest.fixture
    def make_backend(self, server):
        return lambda **options: RedisBackend(fakeredis.FakeRedis(server=server), **options)


class TestAsyncio(OnFakeredis):
    @pytest.fixture
    def make_backend(self, server):
        with LoopThread() as loop:

            async def connect():
                return fakeredis.FakeAsyncRedis(server=server)

            def make(**options):
                return BlockingFacade(AsyncRedisBackend(loop.run(connect()), **options), loop)

            yield make
