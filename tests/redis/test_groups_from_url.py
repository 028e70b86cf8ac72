"""Backends from a URL of Sentinels or of a cluster, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import quote

import pytest
import redis
from cluster_servers import ClusterServers
from sentinel_servers import NAME, NEVER_DOWN, SentinelServers
from wait_until import wait_until

from syncguard import aio, backends, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend

PASSWORD = "p/w:@,?#%é"


@pytest.fixture(scope="module")
def sentinel_url() -> Iterator[str]:
    """The servers have a password with every character that a URL gives a meaning to."""
    with SentinelServers(down_after_ms=NEVER_DOWN) as servers:
        for server in (servers.master, servers.replica):
            with server.client() as client:
                client.config_set("masterauth", PASSWORD)
                client.config_set("requirepass", PASSWORD)
        servers.sentinel.sentinels[0].execute_command("SENTINEL SET", NAME, "auth-pass", PASSWORD)
        host, port = servers.address
        yield f"redis+sentinel://:{quote(PASSWORD, safe='')}@{host}:1,{host}:{port}/{NAME}/3"


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    with ClusterServers() as servers:
        yield f"redis+cluster://127.0.0.1:1,127.0.0.1:{servers.port}"


@pytest.fixture(params=["sentinel_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def test_a_lock_is_acquired_waited_for_and_listed(url: str) -> None:
    with RedisBackend.from_url(url, key_prefix="blocking") as backend:
        with lock(backend, "k", 30_000) as held:
            assert not backend.acquire("k").ok
            assert [info.fence for info in backend.live_locks()] == [held.fence]
        assert backend.count_live_locks() == 0
        assert backend.health().fields["role"] == "primary"


def test_the_registry_makes_the_same_backends(url: str) -> None:
    with backends.from_url(url, key_prefix="registry") as backend:
        assert type(backend) is RedisBackend
        held = backend.acquire("k")
        assert held.ok

    async def main() -> None:
        async with backends.async_from_url(url, key_prefix="registry") as backend:
            assert type(backend) is AsyncRedisBackend
            assert not (await backend.acquire("k")).ok
            assert (await backend.release(held.lock_id)).ok

    asyncio.run(main())


def test_an_asyncio_backend_works_in_one_event_loop_after_another(sentinel_url: str) -> None:
    """A connection to a Sentinel that is kept would belong to the first loop."""

    async def main(backend: AsyncRedisBackend) -> None:
        async with aio.lock(backend, "k", 30_000):
            assert not (await backend.acquire("k")).ok

    async def close(backend: AsyncRedisBackend) -> None:
        await main(backend)
        await backend.aclose()

    backend = AsyncRedisBackend.from_url(sentinel_url, key_prefix="loops")
    asyncio.run(main(backend))
    asyncio.run(main(backend))
    asyncio.run(close(backend))


def test_the_database_of_a_sentinel_url_is_used(sentinel_url: str) -> None:
    with RedisBackend.from_url(sentinel_url, key_prefix="db") as backend:
        held = backend.acquire("k")
        client = backend._client
        assert client.connection_pool.connection_kwargs["db"] == 3
        assert client.exists("db:k")
        backend.release(held.lock_id)


def test_no_connection_to_a_sentinel_is_kept(sentinel_url: str) -> None:
    host, port = sentinel_url.rpartition("@")[2].partition("/")[0].split(",")[1].split(":")
    with redis.Redis(host, int(port)) as observer:

        def others() -> list[str]:
            return [each["addr"] for each in observer.client_list() if each["name"] == "ours"]

        options = {"sentinel_kwargs": {"client_name": "ours"}}
        with RedisBackend.from_url(sentinel_url, key_prefix="few", **options) as backend:
            with lock(backend, "k", 30_000):
                wait_until(lambda: not others())


def test_many_threads_may_be_the_first_to_use_a_cluster(cluster_url: str) -> None:
    with RedisBackend.from_url(cluster_url, key_prefix="threads") as backend:
        begin = Barrier(8)

        def take(number: int) -> bool:
            begin.wait()
            with lock(backend, f"k{number}", 30_000) as held:
                return held.fence.endswith("1")

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(take, range(8)))
