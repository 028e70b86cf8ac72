"""On a cluster, timeout_ms and signal bound lock() too, also on a node that does not answer.

An attempt that ends at its deadline ends before the time-outs of the client. So the client does not
notice that the node was replaced: it has to be told.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport.runner_async import AsyncClusterRunner
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow

PATIENT_S = 60
"""The time-outs of a client that does not notice a node that hangs, while a test lasts."""
SOON_S = 20
"""Far above the time-out of lock(), and below every time-out of a patient client."""
BRIEF = Acquisition(timeout_ms=700)
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


def server_of(servers: ClusterServers, backend: RedisBackend, key: str) -> RedisServer:
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
                assert is_acquired(backend, other)
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
        assert is_acquired(backend, "k")
        with replicated.master_hangs():
            wait_until(lambda: is_acquired(backend, "k"), 60)


def test_a_request_to_a_node_that_hangs_is_undone_on_the_one_that_replaced_it(
    replicated: ClusterServers,
) -> None:
    """No other call tells the client about it."""
    with backend_on(replicated, IMPATIENT_S, key_prefix="undone") as backend:
        call = backend._calls.acquire("k", 600_000, None)
        assert is_acquired(backend, "k")
        with replicated.master_hangs():
            backend._undo(call.lock_id, call.keys[0], 600_000)
            wait_until(lambda: undo_thread.pending == 0, 60)


def test_lock_follows_a_slot_that_has_moved(replicated: ClusterServers) -> None:
    with backend_on(replicated, key_prefix="follows") as backend:
        assert is_acquired(backend, "k")
        slot = backend._client.keyslot(backend._calls.names.of("k").lock)
        for _ in range(2):
            replicated.migrate(slot)
            assert is_acquired(backend, "k")


@pytest.mark.parametrize("with_signal", [False, True], ids=["no signal", "signal"])
def test_a_slot_that_moved_to_a_node_that_hangs_does_not_hold_lock_up(
    replicated: ClusterServers, with_signal: bool
) -> None:
    """The node that answers MOVED works. The client would follow it, and wait for the other one."""
    prefix = f"moved-{with_signal}"
    with backend_on(replicated, key_prefix=prefix) as backend:
        assert is_acquired(backend, "k")
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
            assert is_acquired(backend, f"k{number}")
        with replicated.master_hangs():
            threads = [
                threading.Thread(target=acquire, args=(backend, number)) for number in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert failures == []


def test_asyncio_nothing_connects_again_after_the_client_was_closed(
    three: ClusterServers,
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(**three.client_settings(IMPATIENT_S))
        backend = AsyncRedisBackend(client, key_prefix="closed")
        await backend.is_locked("k")
        node = client.get_node_from_key(backend._calls.names.of("k").lock)
        stopped = next(each for each in three.masters if each.port == node.port)
        with stopped.paused():
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

            await acquire()
            assert acquired == 1
            with replicated.master_hangs():
                until = time.monotonic() + 60
                while acquired == 1:
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
            async with aio.lock(backend, "k", acquisition=BRIEF):
                pass
            with replicated.master_hangs():
                backend._undo(call.lock_id, call.keys[0], 600_000)
                await wait_until_async(lambda: undo_thread.pending == 0, 60)

    asyncio.run(asyncio.wait_for(main(), 240))
