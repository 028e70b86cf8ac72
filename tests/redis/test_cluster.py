"""Redis Cluster: the names of one lock share a slot, and its lock id determines the slot."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
from call_later import call_later
from cluster_servers import VOTERS_SLOT, ClusterServers
from redis.crc import key_slot
from relay import Relay
from same_health import assert_same_health
from wait_until import wait_until

from syncguard import Acquisition, ServiceUnavailable, aio, generate_lock_id, lock
from syncguard.backend import Health
from syncguard.redis import AsyncRedisBackend, RedisBackend, scripts
from syncguard.redis._transport.runner_async import AsyncClusterRunner
from syncguard.redis.cluster_client import ClusterOnFirstUse
from syncguard.redis.local_waiters import CLUSTER_LIMIT
from syncguard.redis.names import BUCKETS, Names
from syncguard.redis.script_calls import Calls
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    """One node that owns all slots. It also rejects a script with keys of two slots."""
    with ClusterServers() as servers:
        yield servers.node


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


def test_waiters_of_many_buckets_use_at_most_eight_connections(
    backend: RedisBackend, cluster: RedisServer
) -> None:
    """A BLPOP cannot name lists of two buckets. Waiters of further buckets try again and again."""
    names = Names("syncguard", clustered=True)
    by_bucket = {names.of(f"k{n}").bucket: f"k{n}" for n in range(200)}
    keys = sorted(by_bucket.values())[:12]
    holders = [backend.acquire(key, ttl_ms=60_000) for key in keys]
    policy = Acquisition(timeout_ms=60_000, retry_delay_ms=50, backoff="fixed", max_retries=10_000)

    def take(key: str) -> str:
        with lock(backend, key, acquisition=policy) as held:
            return held.fence

    def blocked() -> int:
        return int(observer.info("clients")["blocked_clients"])

    with cluster.client() as observer, ThreadPoolExecutor(max_workers=24) as threads:
        waiters = [threads.submit(take, key) for key in keys * 2]
        deadline, most = time.monotonic() + 20, 0
        while most < 8:
            assert time.monotonic() < deadline, f"only {most} connections listen"
            most = max(most, blocked())
        assert max(blocked() for _ in range(200)) == 8
        for holder in holders:
            assert holder.ok
            holder.release()
        for waiter in waiters:
            assert waiter.result(timeout=60)
        while blocked():
            assert time.monotonic() < deadline + 60
    assert not CLUSTER_LIMIT._listeners


def test_asyncio_waiters_of_many_buckets_use_at_most_eight_connections(
    cluster: RedisServer,
) -> None:
    names = Names("many", clustered=True)
    by_bucket = {names.of(f"k{n}").bucket: f"k{n}" for n in range(200)}
    keys = sorted(by_bucket.values())[:12]
    policy = Acquisition(timeout_ms=60_000, retry_delay_ms=50, backoff="fixed", max_retries=10_000)

    async def main() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
            backend = AsyncRedisBackend(client, key_prefix="many")
            holders = [await backend.acquire(key, ttl_ms=60_000) for key in keys]

            async def take(key: str) -> None:
                async with aio.lock(backend, key, acquisition=policy):
                    pass

            with cluster.client() as observer:
                waiters = asyncio.gather(*(take(key) for key in keys * 2))
                while observer.info("clients")["blocked_clients"] < 8:
                    await asyncio.sleep(0.005)
                for _ in range(100):
                    assert observer.info("clients")["blocked_clients"] <= 8
                    await asyncio.sleep(0)
                for holder in holders:
                    assert holder.ok
                    await holder.release()
                await waiters

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not CLUSTER_LIMIT._listeners


def test_the_queue_of_a_lock_is_on_its_node(backend: RedisBackend) -> None:
    with backend.acquire("k"):
        turn = backend.next_turn("k", max_wait_ms=2_000)
        assert turn.ticket is not None
        assert backend.next_turn("k", max_wait_ms=2_000).ticket is None
        backend.end_wait("k", turn.ticket)


def test_a_lock_is_extended_on_a_cluster(backend: RedisBackend) -> None:
    with lock(backend, "k", ttl_ms=12_000, auto_extend=True) as held:
        before, deadline = held.expires_at_ms, time.monotonic() + 60
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
                while observer.info("clients")["blocked_clients"] < 1:
                    await asyncio.sleep(0.005)
                await holder.release()
                await waiters
                while any(each["cmd"] == "blpop" for each in observer.client_list()):
                    await asyncio.sleep(0.005)  # a connection that was listening is not kept

    async def once(backend: AsyncRedisBackend) -> None:
        async with aio.lock(backend, "k", acquisition=far):
            pass

    asyncio.run(main())


def test_asyncio_the_health_of_a_cluster_is_that_of_its_blocking_twin(
    cluster: RedisServer, backend: RedisBackend
) -> None:
    for n in range(30):
        backend.acquire(f"k{n}", ttl_ms=60_000)

    async def read() -> Health:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
            return await AsyncRedisBackend(client).health()

    found, expected = asyncio.run(read()), backend.health()
    assert_same_health(found, expected)
    assert found.fields["liveLocks"] == 30


def test_asyncio_works_on_a_cluster_too(cluster: RedisServer) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port)
        async with client:
            backend = AsyncRedisBackend(client, key_prefix="aio")
            async with aio.lock(backend, "k", ttl_ms=12_000, auto_extend=True) as held:
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

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_request_that_got_no_reply_is_undone_on_its_node(cluster: RedisServer) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
        backend = RedisBackend(client, key_prefix="undo")
        held = backend.acquire("k", ttl_ms=600_000)
        assert held.ok
        backend.undo(held.lock_id)
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")


def test_a_client_that_was_not_used_yet_undoes_too(cluster: RedisServer) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    with RedisBackend.from_url(url) as holder, RedisBackend.from_url(url) as unused:
        held = holder.acquire("k", ttl_ms=600_000)
        assert held.ok
        unused.undo(held.lock_id)
        wait_until(lambda: undo_thread.pending == 0)
        assert not holder.is_locked("k")


def test_a_cluster_that_does_not_answer_does_not_hold_up_the_undos_of_others(
    syncguard_redis: RedisServer,
) -> None:
    with contextlib.ExitStack() as opened:
        silent = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        hangs = opened.enter_context(
            RedisBackend.from_url(
                f"redis+cluster://127.0.0.1:{silent.getsockname()[1]}", socket_timeout=300
            )
        )
        backend = opened.enter_context(RedisBackend.from_url(syncguard_redis.url))
        held = backend.acquire("k", ttl_ms=600_000)
        assert held.ok
        hangs.undo(generate_lock_id())
        backend.undo(held.lock_id)
        wait_until(lambda: not backend.is_locked("k"))
        assert undo_thread.pending == 1
        silent.close()


@pytest.mark.parametrize("from_url", [False, True], ids=["client", "URL"])
def test_a_forked_child_does_not_wait_for_locks_of_its_parents_client(
    cluster: RedisServer, from_url: bool
) -> None:
    """A background thread of the parent may read the map during the fork. redis-py 8 then holds
    locks, and nobody releases them in the child."""
    if from_url:
        backend = RedisBackend.from_url(f"redis+cluster://127.0.0.1:{cluster.port}")
    else:
        backend = RedisBackend(redis.RedisCluster(host="127.0.0.1", port=cluster.port))
    with contextlib.closing(backend._client) as client, backend:
        owner = client.discover() if isinstance(client, ClusterOnFirstUse) else client
        nodes = owner.nodes_manager
        pools = [node.redis_connection.connection_pool for node in nodes.nodes_cache.values()]
        # By identity: redis-py 5 has one lock for client and map, which is not reentrant.
        locks = {
            id(getattr(each, name)): getattr(each, name)
            for each in (owner, nodes, *pools)
            for name in ("_initialization_lock", "_fork_lock", "_lock")
            if hasattr(each, name)
        }
        locked, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with contextlib.ExitStack() as held:
                for each in locks.values():
                    held.enter_context(each)
                locked.set()
                go_on.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        assert locked.wait(60)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            try:
                backend.is_locked("k")
                backend.close()
                os._exit(0)
            finally:
                os._exit(1)
        go_on.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_asyncio_request_that_got_no_reply_is_undone_on_its_node(cluster: RedisServer) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port)
        async with client:
            backend = AsyncRedisBackend(client, key_prefix="undo-aio")
            held = await backend.acquire("k", ttl_ms=600_000)
            assert held.ok
            backend._undo(held.lock_id)
            await asyncio.to_thread(wait_until, lambda: undo_thread.pending == 0)
            assert not await backend.is_locked("k")

    asyncio.run(asyncio.wait_for(main(), 60))


# -- a release whose reply is lost ------------------------------------------------------------


class OneLossyReply(Relay):
    """Drops the next reply if it is told to, and closes the connection."""

    loses = False

    def reply(self, data: bytes) -> bytes | None:
        loses, self.loses = self.loses, False
        return None if loses else data


@pytest.fixture
def lossy(cluster: RedisServer) -> Iterator[OneLossyReply]:
    with cluster.client() as client:
        client.flushall()
        client.script_load(scripts.RELEASE.text)
    with OneLossyReply(cluster.port) as relay:
        yield relay


def test_a_release_that_the_client_sends_again_is_a_success(lossy: OneLossyReply) -> None:
    """The node executed it, so the second one finds nothing."""
    remap = {"address_remap": lambda _address: (lossy.host, lossy.port)}
    with redis.RedisCluster(host=lossy.host, port=lossy.port, **remap) as client:
        backend = RedisBackend(client)
        held = backend.acquire("k", ttl_ms=60_000)
        assert held.ok
        lossy.loses = True
        result = held.release()
        assert not lossy.loses
        assert result.ok
        assert result.assumed
        assert not held.release().ok


def test_an_asyncio_release_that_the_client_sends_again_is_a_success(lossy: OneLossyReply) -> None:
    async def main() -> None:
        remap = {"address_remap": lambda _address: (lossy.host, lossy.port)}
        client = redis.asyncio.RedisCluster(host=lossy.host, port=lossy.port, **remap)
        async with client:
            backend = AsyncRedisBackend(client)
            held = await backend.acquire("k", ttl_ms=60_000)
            assert held.ok
            lossy.loses = True
            result = await held.release()
            assert not lossy.loses
            assert result.ok
            assert result.assumed
            assert not (await held.release()).ok

    asyncio.run(asyncio.wait_for(main(), 60))


# -- a node that left the client's map ---------------------------------------------------------


def key_in(slot: int) -> tuple[str, str]:
    """A prefix and a key of a lock in this slot."""
    for number in range(100_000):
        prefix = f"p{number}"
        for bucket in BUCKETS:
            if key_slot(f"{{{prefix}:{bucket}}}".encode()) == slot:
                names = Names(prefix, clustered=True)
                return prefix, next(
                    key for n in range(100_000) if names.of(key := f"k{n}").bucket == bucket
                )
    raise AssertionError("no prefix fits")


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_asyncio_no_connection_is_left_open_to_a_node_without_slots(min_replicas: int) -> None:
    """After a lost connection the client refreshes its map. The node of the lock is looked up in
    the new one: redis-py never closes a connection that is opened to a node of the old one."""
    prefix, key = key_in(VOTERS_SLOT)

    async def main(servers: ClusterServers) -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=servers.port)
        async with client:
            backend = AsyncRedisBackend(
                client, key_prefix=prefix, min_replicas=min_replicas, replica_timeout_ms=200
            )
            lock_id = backend._calls.acquire(key, 60_000, None).lock_id
            assert lock_id is not None
            assert not (await backend.release(lock_id)).ok
            assert not (await backend.extend(lock_id)).ok
            with servers.without_voter() as voter:
                voter.client_kill_filter(_type="normal", skipme=True)
                if min_replicas:
                    assert not (await backend.extend(lock_id)).ok
                else:
                    assert (await backend.release(lock_id)).assumed

    with ClusterServers(with_replica=True, node_timeout_ms=5_000) as servers:
        asyncio.run(asyncio.wait_for(main(servers), 60))
    gc.collect()


@pytest.mark.parametrize("writer", [None, "not None"])
def test_asyncio_a_connection_that_the_client_closed_during_a_call_is_a_fault(writer) -> None:
    """As redis-py fails while another task reads the map of nodes again."""

    async def write(*_arguments: object) -> object:
        return writer.writelines

    async def do_nothing() -> None: ...

    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=1)
        client.initialize, client.evalsha = do_nothing, write  # type: ignore[method-assign]
        node = SimpleNamespace(name="node", max_connections=8)
        client.get_node_from_key = lambda _name: node  # type: ignore[method-assign]
        runner = AsyncClusterRunner(client)
        await runner.run(Calls(clustered=True).is_locked("k"))

    expected = ServiceUnavailable if writer is None else AttributeError
    with pytest.raises(expected):
        asyncio.run(main())
