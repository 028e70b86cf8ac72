"""asyncio backends that are used in more than one event loop.

With a large pool, each event loop has its own connection (``test_pipelined_connection``). A small
pool and a cluster have the connections of redis-py, which belong to the loop that opened them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis.asyncio
from cluster_servers import ClusterServers

from syncguard import InvalidArgument, aio
from syncguard.redis import AsyncRedisBackend

LONG_MS = 60_000
SMALL = 4


@pytest.fixture(scope="module")
def cluster_port() -> Iterator[int]:
    with ClusterServers() as servers:
        yield servers.node.port


@pytest.fixture(params=["small pool", pytest.param("cluster", marks=pytest.mark.slow)])
def client(request):
    """A client that the test uses in several loops; the last one closes it."""
    if request.param == "cluster":
        port = request.getfixturevalue("cluster_port")
        return redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
    port = request.getfixturevalue("syncguard_redis").port
    return redis.asyncio.Redis(port=port, max_connections=SMALL)


@pytest.fixture
def backend(client, request):
    return AsyncRedisBackend(client, key_prefix=request.node.name[:40])


async def acquire_and_release(backend, key="k"):
    held = await backend.acquire(key, LONG_MS)
    assert held, "left by an earlier call"
    assert await backend.release(held.lock_id)


async def end(backend, client):
    assert not await backend.is_locked("k")
    await client.aclose()


def test_a_backend_works_in_one_loop_after_the_other_and_leaves_no_lock(backend, client):
    for _ in range(3):
        asyncio.run(acquire_and_release(backend))
    asyncio.run(end(backend, client))


def test_lock_works_in_one_loop_after_the_other(backend, client):
    async def hold():
        async with aio.lock(backend, "k", LONG_MS) as held:
            return held.fence

    fences = [asyncio.run(hold()) for _ in range(3)]
    assert fences == sorted(set(fences))
    asyncio.run(end(backend, client))


def test_in_two_loops_at_the_same_time_the_second_is_refused_before_it_sends(backend, client):
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(acquire_and_release(backend))
        with pytest.raises(InvalidArgument, match="another event loop"):
            asyncio.run(acquire_and_release(backend))
        first.run_until_complete(acquire_and_release(backend))  # no lock was left
        first.run_until_complete(end(backend, client))
    finally:
        first.close()


def test_after_its_client_was_closed_in_one_loop_a_backend_works_in_another(backend, client):
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(acquire_and_release(backend))
        first.run_until_complete(client.aclose())
        asyncio.run(acquire_and_release(backend))
        asyncio.run(end(backend, client))
    finally:
        first.close()


@pytest.mark.slow
def test_more_simultaneous_locks_than_a_node_of_a_cluster_has_connections(cluster_port):
    async def main():
        client = redis.asyncio.RedisCluster(
            host="127.0.0.1", port=cluster_port, max_connections=SMALL
        )
        async with client:
            backend = AsyncRedisBackend(client, key_prefix="many")

            async def hold(key):
                async with aio.lock(backend, key, LONG_MS) as held:
                    return held.fence

            return await asyncio.gather(*(hold(f"k{n}") for n in range(20 * SMALL)))

    assert len(asyncio.run(asyncio.wait_for(main(), 60))) == 20 * SMALL
