"""The conformance suite behind Sentinel and on a cluster, with the backends that a URL makes."""

from __future__ import annotations

import contextlib

import pytest
from cluster_servers import ClusterServers
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from sentinel_servers import NAME, NEVER_DOWN, SentinelServers

from syncguard.redis import AsyncRedisBackend, RedisBackend, client_from_url
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread

pytestmark = [pytest.mark.rounds, pytest.mark.slow]


class Servers:
    """Real servers for one module. A test may stop them; then the next test gets new ones."""

    def __init__(self, make, data_server, url):
        self._make, self._data_server, self._url = make, data_server, url
        self._opened = contextlib.ExitStack()
        self._running = None

    def empty(self):
        """Start them if they do not run, delete all data, and return their URL."""
        if self._running is None:
            self._running = self._opened.enter_context(self._make())
        with self._data_server(self._running).client() as client:
            client.flushall()
        return self._url(self._running)

    def stop(self):
        self._running = None
        self._opened.close()


@pytest.fixture(scope="module")
def sentinel_servers():
    servers = Servers(
        lambda: SentinelServers(down_after_ms=NEVER_DOWN),
        lambda running: running.master,
        lambda running: f"redis+sentinel://127.0.0.1:{running.address[1]}/{NAME}/0",
    )
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def cluster_servers():
    servers = Servers(
        ClusterServers,
        lambda running: running.node,
        lambda running: f"redis+cluster://127.0.0.1:{running.port}",
    )
    yield servers
    servers.stop()


class OnServers(LockBackendConformance):
    @pytest.fixture
    def outage(self, servers):
        return servers.stop


class Blocking(OnServers):
    @pytest.fixture
    def make_backend(self, servers):
        url = servers.empty()
        with contextlib.ExitStack() as opened:

            def make(**options):
                backend = RedisBackend.from_url(url, retry=Retry(NoBackoff(), 0), **options)
                return opened.enter_context(backend)

            yield make


class Asyncio(OnServers):
    @pytest.fixture
    def make_backend(self, servers):
        url = servers.empty()
        made = []
        with LoopThread() as loop:

            def make(**options):
                retry = AsyncRetry(NoBackoff(), 0)
                made.append(AsyncRedisBackend.from_url(url, retry=retry, **options))
                return BlockingFacade(made[-1], loop)

            yield make
            for backend in made:
                loop.run(backend.aclose())


class OnSentinel:
    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch):
        """A busy machine may pause a Sentinel for longer than it is usually waited for."""
        monkeypatch.setattr(client_from_url, "SENTINEL_TIMEOUT_S", 60.0)

    @pytest.fixture
    def servers(self, sentinel_servers):
        return sentinel_servers


class OnCluster:
    @pytest.fixture
    def servers(self, cluster_servers):
        return cluster_servers


class TestSentinel(OnSentinel, Blocking): ...


class TestSentinelAsyncio(OnSentinel, Asyncio): ...


class TestCluster(OnCluster, Blocking): ...


class TestClusterAsyncio(OnCluster, Asyncio): ...
