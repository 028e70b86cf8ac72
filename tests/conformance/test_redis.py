"""The conformance suite with the Redis backends, blocking and asyncio, on a real Redis."""

from __future__ import annotations

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard import aio, with_telemetry
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread

PATIENT = {"socket_timeout": 60}


class OnRedis(LockBackendConformance):
    @pytest.fixture
    def outage(self, syncguard_redis):
        return syncguard_redis.kill


class TestBlocking(OnRedis):
    @pytest.fixture
    def make_backend(self, syncguard_redis):
        with syncguard_redis.client(retry=Retry(NoBackoff(), 0), **PATIENT) as client:
            yield lambda **options: RedisBackend(client, **options)


class TestAsyncio(OnRedis):
    @pytest.fixture
    def make_backend(self, syncguard_redis):
        retry = AsyncRetry(NoBackoff(), 0)
        client = redis.asyncio.Redis(port=syncguard_redis.port, retry=retry, **PATIENT)
        with LoopThread() as loop:
            yield lambda **options: BlockingFacade(AsyncRedisBackend(client, **options), loop)
            loop.run(client.aclose())


class TestReporting(OnRedis):
    """A backend with telemetry fulfils the contract too."""

    @pytest.fixture
    def make_backend(self, syncguard_redis):
        with syncguard_redis.client(retry=Retry(NoBackoff(), 0), **PATIENT) as client:
            yield lambda **options: with_telemetry(RedisBackend(client, **options), on_event=print)


class TestReportingAsyncio(OnRedis):
    @pytest.fixture
    def make_backend(self, syncguard_redis):
        retry = AsyncRetry(NoBackoff(), 0)
        client = redis.asyncio.Redis(port=syncguard_redis.port, retry=retry, **PATIENT)
        with LoopThread() as loop:

            def make(**options):
                reporting = aio.with_telemetry(AsyncRedisBackend(client, **options), on_event=print)
                return BlockingFacade(reporting, loop)

            yield make
            loop.run(client.aclose())
