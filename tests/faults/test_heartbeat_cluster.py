"""Heartbeats on a cluster: a node that hangs loses its own locks, and no others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from cluster_servers import ClusterServers
from redis.crc import key_slot
from wait_until import (
    TTL_MS,
    wait_until,
    wait_until_async,
    wait_until_extended,
    wait_until_extended_async,
)

from syncguard import (
    LockError,
    ServiceUnavailable,
    aio,
    generate_lock_id,
    lock,
    with_telemetry,
)
from syncguard._lock.held import Held
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow

MANY = 1_000
MANY_TTL_MS = 9_000
TIMEOUT_S = 20.0
"""So long that no call to a node that works times out, however busy the machine is."""
TIMEOUT_IF_A_NODE_HANGS_S = 2.0


def client_of(servers: ClusterServers, timeout_s: float = TIMEOUT_S) -> redis.RedisCluster:
    return redis.RedisCluster(**servers.client_settings(timeout_s))


def async_client_of(
    servers: ClusterServers, timeout_s: float = TIMEOUT_S
) -> redis.asyncio.RedisCluster:
    return redis.asyncio.RedisCluster(**servers.client_settings(timeout_s))


def key_of_each_node(client: redis.RedisCluster | redis.asyncio.RedisCluster) -> dict[str, str]:
    """A key for each node, by the node's name."""
    backend = RedisBackend(client) if isinstance(client, redis.RedisCluster) else None
    names = (backend or AsyncRedisBackend(client))._calls.names
    keys: dict[str, str] = {}
    for n in range(500):
        keys.setdefault(client.get_node_from_key(names.of(f"k{n}").lock).name, f"k{n}")
    assert len(keys) == 3
    return keys


def server_named(servers: ClusterServers, name: str) -> RedisServer:
    return next(each for each in servers.masters if name.endswith(f":{each.port}"))


# -- one of three nodes hangs ------------------------------------------------------------------


def test_a_node_that_hangs_loses_no_lock_of_the_others(three: ClusterServers) -> None:
    client = client_of(three, TIMEOUT_IF_A_NODE_HANGS_S)
    with client, contextlib.ExitStack() as opened:
        backend = RedisBackend(client)
        held = {
            name: opened.enter_context(block_of(backend, key))
            for name, key in key_of_each_node(client).items()
        }
        stopped, *others = held
        wait_until_extended(held[stopped])
        with server_named(three, stopped).paused():
            wait_until(lambda: held[stopped].lost)
            for name in others:
                wait_until_extended(held[name])
                assert not held[name].lost


@contextlib.contextmanager
def block_of(backend: RedisBackend, key: str, ttl_ms: int = TTL_MS) -> Iterator[Held]:
    """A block that may end without its lock."""
    with contextlib.suppress(LockError), lock(backend, key, ttl_ms, auto_extend=True) as held:
        yield held


@contextlib.asynccontextmanager
async def block_of_async(backend: AsyncRedisBackend, key: str, ttl_ms: int = TTL_MS):
    with contextlib.suppress(LockError):
        async with aio.lock(backend, key, ttl_ms, auto_extend=True) as held:
            yield held


def test_asyncio_a_node_that_hangs_loses_no_lock_of_the_others(three: ClusterServers) -> None:
    async def main() -> None:
        client = async_client_of(three, TIMEOUT_IF_A_NODE_HANGS_S)
        async with client, contextlib.AsyncExitStack() as opened:
            backend = AsyncRedisBackend(client)
            held = {
                name: await opened.enter_async_context(block_of_async(backend, key))
                for name, key in key_of_each_node(client).items()
            }
            stopped, *others = held
            await wait_until_extended_async(held[stopped])
            with server_named(three, stopped).paused():
                await wait_until_async(lambda: held[stopped].lost)
                for name in others:
                    await wait_until_extended_async(held[name])
                    assert not held[name].lost

    asyncio.run(asyncio.wait_for(main(), 240))


@pytest.mark.rounds
def test_a_node_that_hangs_loses_none_of_many_locks_of_the_others(three: ClusterServers) -> None:
    client = client_of(three, TIMEOUT_IF_A_NODE_HANGS_S)
    with client, contextlib.ExitStack() as opened:
        backend = RedisBackend(client, key_prefix="many")
        held: dict[str | None, list[Held]] = defaultdict(list)
        for n in range(MANY):
            one = opened.enter_context(block_of(backend, f"k{n}", MANY_TTL_MS))
            held[backend.server_of(one.lock_id)].append(one)
        stopped, *others = held
        assert stopped is not None
        with server_named(three, stopped).paused():
            wait_until(lambda: all(one.lost for one in held[stopped]), 60)
            for name in others:
                before = [one.expires_at_ms for one in held[name]]
                wait_until(
                    lambda name=name, before=before: all(
                        one.expires_at_ms > at for one, at in zip(held[name], before, strict=True)
                    )
                )
                assert not any(one.lost for one in held[name])


@pytest.mark.rounds
def test_asyncio_a_node_that_hangs_loses_none_of_many_locks_of_the_others(
    three: ClusterServers,
) -> None:
    async def main() -> None:
        client = async_client_of(three, TIMEOUT_IF_A_NODE_HANGS_S)
        async with client, contextlib.AsyncExitStack() as opened:
            backend = AsyncRedisBackend(client, key_prefix="many-aio")
            held: dict[str | None, list[Held]] = defaultdict(list)
            for n in range(MANY):
                block = block_of_async(backend, f"k{n}", MANY_TTL_MS)
                one = await opened.enter_async_context(block)
                held[backend.server_of(one.lock_id)].append(one)
            stopped, *others = held
            assert stopped is not None
            with server_named(three, stopped).paused():
                await wait_until_async(lambda: all(one.lost for one in held[stopped]), 60)
                for name in others:
                    before = [one.expires_at_ms for one in held[name]]
                    await wait_until_async(
                        lambda name=name, before=before: all(
                            one.expires_at_ms > at
                            for one, at in zip(held[name], before, strict=True)
                        )
                    )
                    assert not any(one.lost for one in held[name])

    asyncio.run(asyncio.wait_for(main(), 240))


# -- slots that move, and nodes that are replaced ----------------------------------------------


def slot_of(backend: RedisBackend | AsyncRedisBackend, key: str) -> int:
    slot: int = key_slot(backend._calls.names.of(key).lock.encode())
    return slot


def test_a_lock_is_extended_while_its_slot_moves_away_and_back(replicated: ClusterServers) -> None:
    with client_of(replicated) as client:
        events: list[object] = []
        backend = RedisBackend(client, key_prefix="moving")
        reporting = with_telemetry(backend, on_event=events.append)
        with lock(reporting, "k", TTL_MS, auto_extend=True) as held:
            wait_until_extended(held)
            before = backend.server_of(held.lock_id)
            for _ in range(2):
                replicated.migrate(slot_of(backend, "k"))
                wait_until_extended(held)
                wait_until_extended(held)
            assert backend.server_of(held.lock_id) == before
            with replicated.moving(slot_of(backend, "k")):
                wait_until_extended(held)
        assert {event.result for event in events if event.type == "extend"} == {"ok"}


def moved_first(
    backend: RedisBackend | AsyncRedisBackend, lock_id: str, first: str
) -> tuple[str, ...]:
    names = backend._calls.names
    if first == "lock":
        return (names.of("k").lock,)
    # What the scripts name: Redis executes them where these are.
    return names.index(lock_id), names.space_of(lock_id).live


MOVED_FIRST = pytest.mark.parametrize("first", ["index", "lock"])


@MOVED_FIRST
def test_a_lock_that_is_half_moved_is_neither_lost_nor_released(
    replicated: ClusterServers, first: str
) -> None:
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix=f"half-{first}")
        with lock(backend, "k", 600_000, auto_extend=True) as held:
            moved = moved_first(backend, held.lock_id, first)
            with replicated.half_moved(slot_of(backend, "k"), *moved):
                for operation in (backend.release, backend.extend, backend.adopt):
                    with pytest.raises(ServiceUnavailable):
                        operation(held.lock_id)
                with pytest.raises(ServiceUnavailable):
                    backend.lookup(lock_id=held.lock_id)
            assert backend.extend(held.lock_id, 600_000).ok
            assert not held.lost


@MOVED_FIRST
def test_a_lock_that_is_half_moved_is_undone_once_it_has_moved(
    replicated: ClusterServers, first: str
) -> None:
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix=f"undo-{first}")
        held = backend.acquire("k", 600_000)
        assert held.ok
        moved = moved_first(backend, held.lock_id, first)
        with replicated.half_moved(slot_of(backend, "k"), *moved):
            undo = backend._undo(held.lock_id, "k", 600_000)
            assert undo.tried.wait(60)
        wait_until(lambda: not backend.is_locked("k"), 60)


@MOVED_FIRST
def test_a_lock_that_is_half_moved_stays_in_the_list(
    replicated: ClusterServers, first: str
) -> None:
    """While it moves, the list may miss it; and an expired entry is on neither node."""
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix=f"list-{first}")
        held = backend.acquire("k", 600_000)
        assert held.ok
        live = backend._calls.names.space_of(held.lock_id).live
        client.zadd(live, {f"{live}:expired": 1})
        with replicated.half_moved(
            slot_of(backend, "k"), *moved_first(backend, held.lock_id, first)
        ):
            page = backend.page_raw()
            assert (page.locks, page.total) == ([], 1)
            assert backend.find_raw(lambda _: True) == []
        assert [info.fence for info in backend.live_locks()] == [held.fence]
        assert [info.fence for info in backend.find_raw(lambda _: True)] == [held.fence]


def test_the_list_has_the_locks_of_a_slot_that_have_not_moved_yet(
    replicated: ClusterServers,
) -> None:
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix="list-some")
        names = backend._calls.names
        first, second, third = keys_of_one_slot(backend, 3)
        for key in (first, second, third):
            assert backend.acquire(key, 600_000).ok
        with replicated.half_moved(slot_of(backend, first), names.of(second).lock):
            page = backend.page_raw()
            assert sorted(info.key for info in page.locks) == sorted([first, third])
            assert page.total == 3
            found = backend.find_raw(lambda _: True, at_most=3)
            assert sorted(info.key for info in found) == sorted([first, third])


def keys_of_one_slot(backend: RedisBackend, count: int) -> list[str]:
    """Keys whose locks have one slot, and so one list."""
    by_bucket: dict[str, list[str]] = defaultdict(list)
    for n in range(10_000):
        keys = by_bucket[backend._calls.names.of(f"k{n}").bucket]
        keys.append(f"k{n}")
        if len(keys) == count:
            return keys
    raise AssertionError("no bucket has so many keys")


def test_a_lock_is_released_while_its_slot_begins_to_move(replicated: ClusterServers) -> None:
    """The node then refuses to look for a waiter: that name does not exist."""
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix="begins")
        held = backend.acquire("k", 600_000)
        assert held.ok
        with replicated.moving(slot_of(backend, "k")):
            assert backend.release(held.lock_id).ok
        assert not backend.is_locked("k")


@MOVED_FIRST
def test_asyncio_a_lock_that_is_half_moved_is_neither_lost_nor_released(
    replicated: ClusterServers, first: str
) -> None:
    async def main() -> None:
        async with async_client_of(replicated) as client:
            backend = AsyncRedisBackend(client, key_prefix=f"half-aio-{first}")
            async with aio.lock(backend, "k", 600_000, auto_extend=True) as held:
                moved = moved_first(backend, held.lock_id, first)
                with replicated.half_moved(slot_of(backend, "k"), *moved):
                    for operation in (backend.release, backend.extend, backend.adopt):
                        with pytest.raises(ServiceUnavailable):
                            await operation(held.lock_id)
                    with pytest.raises(ServiceUnavailable):
                        await backend.lookup(lock_id=held.lock_id)
                assert (await backend.extend(held.lock_id, 600_000)).ok
                assert not held.lost

    asyncio.run(main())


def test_asyncio_a_lock_is_extended_while_its_slot_moves_away_and_back(
    replicated: ClusterServers,
) -> None:
    async def main() -> None:
        async with async_client_of(replicated) as client:
            events: list[object] = []
            backend = AsyncRedisBackend(client, key_prefix="moving-aio")
            reporting = aio.with_telemetry(backend, on_event=events.append)
            async with aio.lock(reporting, "k", TTL_MS, auto_extend=True) as held:
                await wait_until_extended_async(held)
                before = backend.server_of(held.lock_id)
                for _ in range(2):
                    await asyncio.to_thread(replicated.migrate, slot_of(backend, "k"))
                    await wait_until_extended_async(held)
                    await wait_until_extended_async(held)
                assert backend.server_of(held.lock_id) == before
            assert {event.result for event in events if event.type == "extend"} == {"ok"}

    asyncio.run(asyncio.wait_for(main(), 240))


FAILOVERS = [("fail_over_by_command", 20_000), ("kill_master", 30_000)]
"""With a TTL that is longer than the fail-over takes, also on a busy machine."""


@pytest.mark.parametrize(("how", "ttl_ms"), FAILOVERS)
def test_a_lock_is_extended_by_the_node_that_took_over(replicated, how, ttl_ms) -> None:
    with client_of(replicated) as client:
        backend = RedisBackend(client, key_prefix="taken-over")
        with lock(backend, "k", ttl_ms, auto_extend=True) as held:
            before = backend.server_of(held.lock_id)
            getattr(replicated, how)()
            wait_until(lambda: backend.server_of(held.lock_id) != before)
            wait_until_extended(held)


@pytest.mark.parametrize(("how", "ttl_ms"), FAILOVERS)
def test_asyncio_a_lock_is_extended_by_the_node_that_took_over(replicated, how, ttl_ms) -> None:
    async def main() -> None:
        async with async_client_of(replicated) as client:
            backend = AsyncRedisBackend(client, key_prefix="taken-over-aio")
            async with aio.lock(backend, "k", ttl_ms, auto_extend=True) as held:
                before = backend.server_of(held.lock_id)
                await asyncio.to_thread(getattr(replicated, how))
                await wait_until_async(lambda: backend.server_of(held.lock_id) != before)
                await wait_until_extended_async(held)

    asyncio.run(asyncio.wait_for(main(), 240))


# -- nodes that are not there ------------------------------------------------------------------


def test_a_channel_to_a_node_that_left_the_cluster_is_refused(three: ClusterServers) -> None:
    with client_of(three) as client, pytest.raises(LockError) as caught:
        RedisBackend(client).open_server_channel("127.0.0.1:1", 1_000)
    assert caught.value.code == "ServiceUnavailable"

    async def main() -> None:
        async with async_client_of(three) as client:
            await AsyncRedisBackend(client).open_server_channel("127.0.0.1:1", 1_000)

    with pytest.raises(LockError):
        asyncio.run(main())


def test_a_lock_in_a_slot_that_no_node_has_belongs_to_no_server() -> None:
    """Then the client is asked, which looks for the node."""
    with RedisServer(config=["cluster-enabled yes", "cluster-require-full-coverage no"]) as node:
        with node.client() as client:
            client.execute_command("CLUSTER ADDSLOTS", 0)
            wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        lock_id = generate_lock_id()
        settings = {"host": node.host, "port": node.port, "require_full_coverage": False}
        with redis.RedisCluster(**settings) as cluster:
            assert RedisBackend(cluster).server_of(lock_id) is None

        async def main() -> None:
            async with redis.asyncio.RedisCluster(**settings) as cluster:
                assert AsyncRedisBackend(cluster).server_of(lock_id) is None

        asyncio.run(main())
