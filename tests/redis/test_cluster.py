"""Redis Cluster: the names of one lock share a slot, and its lock id determines the slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from call_later import call_later

from syncguard import Acquisition, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.names import BUCKETS, Names
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One node that owns all slots. It also rejects a script with keys of two slots."""
    with RedisServer(config=["cluster-enabled yes"]) as server:
        with redis.Redis(port=server.port) as node:
            node.execute_command("CLUSTER ADDSLOTS", *range(16384))
            deadline = time.monotonic() + 20
            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.01)
        yield server


@pytest.fixture
def backend(cluster: RedisServer) -> Iterator[RedisBackend]:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
        client.flushall()
        yield RedisBackend(client)


def test_the_bucket_is_the_first_character_of_the_lock_id(backend: RedisBackend) -> None:
    for n in range(20):
        result = backend.acquire(f"k{n}")
        assert result.ok
        assert result.lock_id[0] == Names("syncguard", clustered=True).of(f"k{n}").bucket
        assert result.lock_id[0] in BUCKETS


def test_a_page_and_the_health_of_a_cluster_count_the_locks_of_all_buckets(
    backend: RedisBackend,
) -> None:
    for n in range(30):
        backend.acquire(f"k{n}", ttl_ms=60_000 + n)
    page = backend.page_raw(limit=5, offset=10)
    assert [info.key for info in page.locks] == [f"k{n}" for n in range(10, 15)]
    assert page.total == backend.page_raw(limit=0).total == 30
    fields = backend.health().fields
    assert (fields["liveLocks"], fields["fenceCounters"]) == (30, 30)


def test_a_lock_is_acquired_extended_adopted_and_released_on_a_cluster(
    backend: RedisBackend,
) -> None:
    for n in range(30):
        key = f"invoice:{n}"
        first = backend.acquire(key, ttl_ms=20_000, holder="worker")
        assert first.ok
        assert not backend.acquire(key).ok
        assert backend.is_locked(key)
        assert backend.extend(first.lock_id, 10_000).ok
        info = backend.lookup(lock_id=first.lock_id)
        assert info is not None
        assert info == backend.lookup(key=key)
        adopted = backend.adopt(first.lock_id, 10_000)
        assert adopted.ok
        assert adopted.fence == first.fence
        assert not backend.release(first.lock_id).ok
        assert backend.release(adopted.lock_id).ok
        second = backend.acquire(key)
        assert second.ok
        assert second.fence > first.fence


def test_listing_joins_the_buckets_and_keeps_the_order(backend: RedisBackend) -> None:
    for n in range(20):
        assert backend.acquire(f"k{n}", ttl_ms=60_000 - n * 1_000).ok
    listed = backend.live_locks()
    assert [i.expires_at_ms for i in listed] == sorted(i.expires_at_ms for i in listed)
    assert backend.live_locks(limit=5, offset=5) == listed[5:10]
    assert backend.count_live_locks() == 20
    assert backend.count_fence_counters() == 20
    seen = listed[7]
    assert backend.force_release(seen.key_hash, fence=seen.fence, lock_id_hash=seen.lock_id_hash).ok
    assert backend.count_live_locks() == 19


def test_a_waiter_is_woken_on_a_cluster(backend: RedisBackend) -> None:
    far = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    with call_later(0.3, holder.release), lock(backend, "k", acquisition=far):
        pass


def test_the_queue_of_a_lock_is_on_its_node(backend: RedisBackend) -> None:
    with backend.acquire("k"):
        turn = backend.next_turn("k", max_wait_ms=2_000)
        assert turn.ticket is not None
        assert backend.next_turn("k", max_wait_ms=2_000).ticket is None
        backend.end_wait("k", turn.ticket)


def test_a_lock_is_extended_on_a_cluster(backend: RedisBackend) -> None:
    with lock(backend, "k", ttl_ms=3_000, auto_extend=True) as held:
        before, deadline = held.expires_at_ms, time.monotonic() + 20
        while held.expires_at_ms == before:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert not held.lost


def test_an_asyncio_waiter_is_woken_on_a_cluster(cluster: RedisServer) -> None:
    far = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")

    async def main() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
            backend = AsyncRedisBackend(client, key_prefix="aio")
            holder = await backend.acquire("k", ttl_ms=60_000)
            assert holder.ok
            with cluster.client() as observer:
                waiters = asyncio.gather(*(once(backend) for _ in range(3)))
                while observer.info("clients")["blocked_clients"] < 3:
                    await asyncio.sleep(0.005)
                await holder.release()
                await waiters
                while any(each["cmd"] == "blpop" for each in observer.client_list()):
                    await asyncio.sleep(0.005)  # a connection that was listening is not kept

    async def once(backend: AsyncRedisBackend) -> None:
        async with aio.lock(backend, "k", acquisition=far):
            pass

    asyncio.run(main())


def test_asyncio_works_on_a_cluster_too(cluster: RedisServer) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port)
        async with client:
            backend = AsyncRedisBackend(client, key_prefix="aio")
            async with aio.lock(backend, "k", ttl_ms=3_000, auto_extend=True) as held:
                before = held.expires_at_ms
                while held.expires_at_ms == before:
                    await asyncio.sleep(0.005)
                assert await backend.count_live_locks() == 1
                contender = asyncio.ensure_future(
                    aio.lock(backend, "k", acquisition=Acquisition(timeout_ms=20_000)).__aenter__()
                )
                await asyncio.sleep(0.05)
            second = await contender
            assert second.fence > held.fence
            await backend.release(second.lock_id)

    asyncio.run(asyncio.wait_for(main(), 60))
