"""On a cluster, timeout_ms and signal bound lock() too, also on a node that does not answer.

An attempt that ends at its deadline ends before the time-outs of the client. So the client does not
notice that the node was replaced: it has to be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from cluster_servers import ClusterServers
from wait_until import wait_until, wait_until_async

from syncguard import (
    Aborted,
    Acquisition,
    LockError,
    NetworkTimeout,
    ServiceUnavailable,
    aio,
    lock,
)
from syncguard._backend.deadline import Deadline
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport.cluster_runner import ClusterRunner
from syncguard.redis._transport.runner_async import AsyncClusterRunner
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow

PATIENT_S = 60
"""The time-outs of a client that does not notice a node that hangs, while a test lasts."""
SOON_S = 20
"""Far above the time-out of lock(), and below every time-out of a patient client."""
BRIEF = Acquisition(timeout_ms=700)
PATIENT = Acquisition(timeout_ms=60_000)
"""For a lock that is acquired in the end, also on a busy machine."""
IMPATIENT_S = 2
"""The time-outs of a client that notices it: longer than an attempt with a deadline may take."""


@contextlib.contextmanager
def backend_on(
    servers: ClusterServers, timeout_s: float = PATIENT_S, **options: Any
) -> Iterator[RedisBackend]:
    with (
        redis.RedisCluster(**servers.client_settings(timeout_s)) as client,
        RedisBackend(client, **options) as backend,
    ):
        yield backend


def server_of(
    servers: ClusterServers, backend: RedisBackend | AsyncRedisBackend, key: str
) -> RedisServer:
    """The server of a key, by the map of the client."""
    node = backend._client.get_node_from_key(backend._calls.names.of(key).lock)
    return next(each for each in servers.masters if each.port == node.port)


def error_of(backend: RedisBackend, key: str, **options: Any) -> LockError:
    """The error that ``lock()`` raises, which must take less than ``SOON_S``."""
    began = time.monotonic()
    with pytest.raises(LockError) as caught:
        lock(backend, key, acquisition=BRIEF, **options).__enter__()
    assert time.monotonic() - began < SOON_S
    return caught.value


def is_acquired(backend: RedisBackend, key: str, **options: Any) -> bool:
    with contextlib.suppress(LockError), lock(backend, key, acquisition=BRIEF, **options):
        return True
    return False


def acquire_once(backend: RedisBackend, key: str) -> None:
    """A silent moment of a busy machine makes the nodes of a cluster refuse requests."""
    wait_until(lambda: is_acquired(backend, key), 60)


@pytest.mark.parametrize("min_replicas", [0, 1])
@pytest.mark.parametrize("used_before", [True, False], ids=["open connection", "new connection"])
def test_a_node_that_hangs_does_not_hold_lock_up(
    three: ClusterServers, used_before: bool, min_replicas: int
) -> None:
    with backend_on(three, min_replicas=min_replicas) as backend:
        stopped = server_of(three, backend, "k0")
        other = next(
            key
            for key in (f"k{n}" for n in range(500))
            if server_of(three, backend, key) is not stopped
        )
        if used_before:
            backend.is_locked("k0")
        with stopped.paused():
            assert isinstance(error_of(backend, "k0"), NetworkTimeout)
            if not min_replicas:
                with lock(backend, other, acquisition=PATIENT):
                    pass
        if not min_replicas:
            wait_until(lambda: is_acquired(backend, "k0"), 60)


def test_a_signal_aborts_an_attempt_on_a_node_that_hangs(three: ClusterServers) -> None:
    signal = threading.Event()
    with backend_on(three) as backend, server_of(three, backend, "k").paused():
        timer = threading.Timer(0.3, signal.set)
        timer.start()
        began = time.monotonic()
        with pytest.raises(Aborted):
            lock(
                backend, "k", acquisition=Acquisition(timeout_ms=50_000), signal=signal
            ).__enter__()
        assert time.monotonic() - began < SOON_S
        timer.join()


def test_a_cluster_that_hangs_when_it_is_first_used_does_not_hold_lock_up(
    three: ClusterServers,
) -> None:
    """The client of a URL asks for the nodes of the cluster when it is first used."""
    url = (
        f"redis+cluster://127.0.0.1:{three.port}"
        f"?socket_timeout={PATIENT_S}&socket_connect_timeout={PATIENT_S}"
    )
    with RedisBackend.from_url(url) as backend:
        with three.node.paused():
            for _ in range(3):
                assert isinstance(error_of(backend, "k"), NetworkTimeout)
        wait_until(lambda: is_acquired(backend, "k"), 60)


def test_lock_finds_the_node_that_replaced_one_that_hangs(replicated: ClusterServers) -> None:
    with backend_on(replicated, IMPATIENT_S) as backend:
        acquire_once(backend, "k")
        with replicated.master_hangs():
            wait_until(lambda: is_acquired(backend, "k"), 60)


def test_a_request_to_a_node_that_hangs_is_undone_on_the_one_that_replaced_it(
    replicated: ClusterServers,
) -> None:
    """No other call tells the client about it."""
    with backend_on(replicated, IMPATIENT_S, key_prefix="undone") as backend:
        call = backend._calls.acquire("k", 600_000, None)
        acquire_once(backend, "k")
        with replicated.master_hangs():
            backend._undo(call.lock_id, call.keys[0], 600_000)
            wait_until(lambda: undo_thread.pending == 0, 60)


def test_lock_follows_a_slot_that_has_moved(replicated: ClusterServers) -> None:
    with backend_on(replicated, key_prefix="follows") as backend:
        acquire_once(backend, "k")
        slot = backend._client.keyslot(backend._calls.names.of("k").lock)
        for _ in range(2):
            replicated.migrate(slot)
            with lock(backend, "k", acquisition=PATIENT):
                pass


@pytest.mark.parametrize("with_signal", [False, True], ids=["no signal", "signal"])
def test_a_slot_that_moved_to_a_node_that_hangs_does_not_hold_lock_up(
    replicated: ClusterServers, with_signal: bool
) -> None:
    """The node that answers MOVED works. The client would follow it, and wait for the other one."""
    prefix = f"moved-{with_signal}"
    with backend_on(replicated, key_prefix=prefix) as backend:
        acquire_once(backend, "k")
        slot = backend._client.keyslot(backend._calls.names.of("k").lock)
        replicated.migrate(slot)
        with replicated.node.paused():
            signal = threading.Event() if with_signal else None
            error = error_of(backend, "k", signal=signal)
            assert isinstance(error, (NetworkTimeout, ServiceUnavailable))
        replicated.migrate(slot)
        wait_until(lambda: is_acquired(backend, "k"), 60)


def test_several_threads_find_the_node_that_replaced_one_that_hangs(
    replicated: ClusterServers,
) -> None:
    """The client drops the old node, and its connections, while other threads wait for it."""
    failures: list[BaseException] = []

    def acquire(backend: RedisBackend, number: int) -> None:
        try:
            until = time.monotonic() + 60
            while not is_acquired(backend, f"k{number}", signal=threading.Event()):
                assert time.monotonic() < until
        except BaseException as error:
            failures.append(error)

    with backend_on(replicated, IMPATIENT_S, key_prefix="threads") as backend:
        for number in range(4):
            acquire_once(backend, f"k{number}")
        with replicated.master_hangs():
            threads = [
                threading.Thread(target=acquire, args=(backend, number)) for number in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert failures == []


@pytest.mark.parametrize("encoding", ["latin-1", "cp1251"])
def test_names_are_utf_8_whatever_the_encoding_of_the_client(
    three: ClusterServers, encoding: str
) -> None:
    """The client would encode a name as text for another slot, and ask another node."""
    settings = {**three.client_settings(PATIENT_S), "encoding": encoding}
    keys = [f"k{number}" for number in range(9)]

    async def acquire_all() -> None:
        async with redis.asyncio.RedisCluster(**settings) as client:
            backend = AsyncRedisBackend(client, key_prefix="ключ")
            for key in keys:
                async with aio.lock(backend, key, acquisition=PATIENT):
                    assert not await backend.acquire(key)

    with (
        redis.RedisCluster(**settings) as client,
        RedisBackend(client, key_prefix="ключ") as backend,
    ):
        for key in keys:
            with lock(backend, key, acquisition=PATIENT):
                assert not backend.acquire(key)
    asyncio.run(asyncio.wait_for(acquire_all(), 240))


def test_an_undo_finds_the_node_of_a_slot_that_the_client_has_forgotten(
    three: ClusterServers,
) -> None:
    """No other call tells the client about it."""
    with backend_on(three, key_prefix="forgotten") as backend:
        call = backend._calls.acquire("k", 600_000, None)
        with lock(backend, "k", acquisition=PATIENT):
            pass
        forget_slot(backend, call.keys[0])
        backend._undo(call.lock_id, call.keys[0], 600_000)
        wait_until(lambda: undo_thread.pending == 0, 60)
        forget_slot(backend, call.keys[0])
        with lock(backend, "k", acquisition=PATIENT):
            pass
        forget_slot(backend, call.keys[0])
        assert not backend.is_locked("k")


def test_an_asyncio_undo_finds_the_node_of_a_slot_that_the_client_has_forgotten(
    three: ClusterServers,
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(**three.client_settings(PATIENT_S))
        async with client, AsyncRedisBackend(client, key_prefix="forgotten-aio") as backend:
            call = backend._calls.acquire("k", 600_000, None)
            async with aio.lock(backend, "k", acquisition=PATIENT):
                pass
            forget_slot(backend, call.keys[0])
            backend._undo(call.lock_id, call.keys[0], 600_000)
            await wait_until_async(lambda: undo_thread.pending == 0, 60)
            forget_slot(backend, call.keys[0])
            assert not await backend.is_locked("k")

    asyncio.run(asyncio.wait_for(main(), 240))


def forget_slot(backend: RedisBackend | AsyncRedisBackend, name: str) -> None:
    """As if the client had read its map while nobody had this slot."""
    client: Any = backend._client
    del client.nodes_manager.slots_cache[client.keyslot(name)]


def test_an_update_for_an_undo_leaves_no_connection_of_a_closed_client(
    three: ClusterServers,
) -> None:
    backend = RedisBackend.from_url(f"redis+cluster://127.0.0.1:{three.port}")
    with lock(backend, "k", acquisition=PATIENT):
        pass
    backend.close()
    runner = backend._runner
    assert isinstance(runner, ClusterRunner)
    update = runner.map.update(backend._calls.names.of("k").lock)
    wait_until(lambda: update.ended, 60)

    def is_closed() -> bool:
        pools = [
            node.redis_connection.connection_pool
            for node in backend._client.nodes_manager.nodes_cache.values()
        ]
        return not any(
            connection._sock
            for pool in pools
            for connection in (*pool._available_connections, *pool._in_use_connections)
        )

    wait_until(is_closed)


def test_asyncio_a_call_that_ends_after_the_backend_was_closed_connects_nothing(
    three: ClusterServers,
) -> None:
    """Its caller was cancelled; the request goes on until its deadline."""

    async def main() -> None:
        client = redis.asyncio.RedisCluster(**three.client_settings(PATIENT_S))
        backend = AsyncRedisBackend(client, key_prefix="cancelled")
        await backend.is_locked("k")
        with server_of(three, backend, "k").paused():
            before = asyncio.all_tasks()
            caller = asyncio.ensure_future(aio.lock(backend, "k", acquisition=BRIEF).__aenter__())
            while not (request := asyncio.all_tasks() - before - {caller}):
                await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait({caller})
            await backend.aclose()
            undo_thread.drop_jobs()
            await asyncio.wait(request)
            runner = backend._runner
            assert isinstance(runner, AsyncClusterRunner)
            assert not runner._map._running
            await client.aclose()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_asyncio_a_client_that_is_first_used_after_a_deadline_closes_all_its_connections(
    three: ClusterServers,
) -> None:
    """The call has not begun, so nothing but the update of the map has connected."""

    async def main() -> None:
        client = redis.asyncio.RedisCluster(**three.client_settings(PATIENT_S))
        async with AsyncRedisBackend(client) as backend:
            runner = backend._runner
            assert isinstance(runner, AsyncClusterRunner)
            with pytest.raises(NetworkTimeout):
                await runner.run(backend._calls.is_locked("k"), Deadline.after(-1))
            await wait_until_async(lambda: not runner._map._running, 60)
        await client.aclose()

    asyncio.run(asyncio.wait_for(main(), 120))
    gc.collect()  # what was not closed is an error of this test


def test_asyncio_nothing_connects_again_after_the_client_was_closed(
    three: ClusterServers,
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(**three.client_settings(IMPATIENT_S))
        backend = AsyncRedisBackend(client, key_prefix="closed")
        await backend.is_locked("k")
        with server_of(three, backend, "k").paused():
            with pytest.raises(NetworkTimeout):
                async with aio.lock(backend, "k", acquisition=BRIEF):
                    pass
            runner = backend._runner
            assert isinstance(runner, AsyncClusterRunner)
            assert runner._map._running
            await backend.aclose()
            assert not runner._map._running
            undo_thread.drop_jobs()
            runner.update_map_from_thread(backend._calls.names.of("k").lock)
            await asyncio.sleep(0)
            assert not runner._map._running
            await client.aclose()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_asyncio_lock_finds_the_node_that_replaced_one_that_hangs(
    replicated: ClusterServers,
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(**replicated.client_settings(IMPATIENT_S))
        async with client, AsyncRedisBackend(client) as backend:
            acquired = 0

            async def acquire() -> None:
                nonlocal acquired
                with contextlib.suppress(LockError):
                    async with aio.lock(backend, "k", acquisition=BRIEF):
                        acquired += 1

            while not acquired:
                await acquire()
            acquired = 0
            with replicated.master_hangs():
                until = time.monotonic() + 60
                while not acquired:
                    assert time.monotonic() < until
                    await acquire()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_an_asyncio_request_to_a_node_that_hangs_is_undone_on_the_one_that_replaced_it(
    replicated: ClusterServers,
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(**replicated.client_settings(IMPATIENT_S))
        async with client, AsyncRedisBackend(client, key_prefix="undone-aio") as backend:
            call = backend._calls.acquire("k", 600_000, None)
            async with aio.lock(backend, "k", acquisition=PATIENT):
                pass
            with replicated.master_hangs():
                backend._undo(call.lock_id, call.keys[0], 600_000)
                await wait_until_async(lambda: undo_thread.pending == 0, 60)

    asyncio.run(asyncio.wait_for(main(), 240))
