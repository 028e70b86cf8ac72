"""Fork while a lock is held: the parent holds the lock, and the child holds nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from call_later import call_later
from wait_until import TTL_MS, wait_until, wait_until_extended

from syncguard import Acquisition, LockError, LockEvent, lock, with_telemetry
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def in_child(body: Callable[[], None]) -> None:
    """Run in a forked child; an exception there fails the test here."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(ended) == 0, "the child failed; see its traceback above"


def test_a_child_that_leaves_the_block_does_not_release_the_parents_lock(
    backend: RedisBackend,
) -> None:
    held_by_parent = lock(backend, "k", ttl_ms=20_000)
    held = held_by_parent.__enter__()

    def leave() -> None:
        assert held.lost, "the child counts as holder of its parent's lock"
        held_by_parent.__exit__(None, None, None)

    in_child(leave)
    assert backend.is_locked("k")
    assert not held.lost
    held_by_parent.__exit__(None, None, None)
    assert not backend.is_locked("k")


def test_a_child_may_wait_for_the_lock_that_its_parent_holds(backend: RedisBackend) -> None:
    once = Acquisition(max_retries=0, timeout_ms=60_000)
    shared = lock(backend, "k", ttl_ms=60_000, acquisition=once)

    def ask() -> None:
        with pytest.raises(LockError) as caught:
            shared.__enter__()
        assert caught.value.code == "AcquisitionTimeout", "only the parent is in a block"

    with shared:
        in_child(ask)
        assert backend.is_locked("k")


def test_a_child_that_leaves_the_block_of_a_handle_does_not_release_it(
    backend: RedisBackend,
) -> None:
    with backend.acquire("k", ttl_ms=20_000) as result:
        assert result.ok
        in_child(lambda: result.__exit__(None, None, None))
        assert backend.is_locked("k")
    assert not backend.is_locked("k")


def test_a_child_does_not_extend_the_parents_lock(backend: RedisBackend) -> None:
    """The parent stops extending; if the child extended, the lock would not expire."""
    held_by_parent = lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True)
    held = held_by_parent.__enter__()
    before = held.expires_at_ms
    wait_until(lambda: held.expires_at_ms > before)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # lives until the parent has seen the lock expire
        os._exit(0)
    os.close(reader)
    held.keep()
    held_by_parent.__exit__(None, None, None)
    wait_until(lambda: not backend.is_locked("k"))
    os.close(writer)
    os.waitpid(pid, 0)


def test_a_childs_own_locks_are_extended(backend: RedisBackend) -> None:
    with lock(backend, "parents", ttl_ms=TTL_MS, auto_extend=True) as parents:
        before = parents.expires_at_ms
        wait_until(lambda: parents.expires_at_ms > before)

        def hold_one() -> None:
            with lock(backend, "childs", ttl_ms=TTL_MS, auto_extend=True) as held:
                first = held.expires_at_ms
                wait_until(lambda: held.expires_at_ms > first)
                assert not held.lost
            assert not backend.is_locked("childs")

        in_child(hold_one)
        before = parents.expires_at_ms
        wait_until(lambda: parents.expires_at_ms > before)


def test_the_extensions_of_a_child_are_reported_there(backend: RedisBackend) -> None:
    events: list[LockEvent] = []
    reporting = with_telemetry(backend, events.append)

    def hold_one() -> None:
        events.clear()
        with lock(reporting, "k", ttl_ms=TTL_MS, auto_extend=True):
            wait_until(lambda: "extend" in [event.type for event in events])

    hold_one()
    in_child(hold_one)


def test_a_child_that_closes_the_backend_does_not_stop_the_parents_heartbeat(
    backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    # An extension that takes a third of the TTL would be logged.
    with lock(backend, "k", ttl_ms=15_000, auto_extend=True) as held:
        wait_until_extended(held)
        in_child(backend.close)
        wait_until_extended(held)
        wait_until_extended(held)
    assert not caplog.records


@pytest.mark.parametrize("pool_class", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_a_fork_while_another_thread_is_in_the_pool_does_not_block_the_child(
    syncguard_redis: RedisServer, pool_class: type[redis.ConnectionPool]
) -> None:
    """redis-py 8 acquires the pool's lock in the child, where the thread that has it is gone."""
    pool = pool_class(port=syncguard_redis.port)
    with redis.Redis(connection_pool=pool) as client, RedisBackend(client) as backend:
        backend.release(_acquire(backend, "warm"))
        inside, leave = threading.Event(), threading.Event()

        def stay_in_pool() -> None:
            with pool._lock:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=stay_in_pool)
        thread.start()
        inside.wait()
        try:

            def ask() -> None:
                signal.alarm(20)  # ends a child that hangs
                assert not backend.is_locked("k")

            in_child(ask)
        finally:
            leave.set()
            thread.join()
            pool.disconnect()


def test_parent_and_child_never_read_each_others_replies(backend: RedisBackend) -> None:
    """Parent and child must not share the connection that the backend keeps between calls."""
    backend.release(_acquire(backend, "warm"))
    pids = []
    for n in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for round in range(100):
                    assert backend.release(_acquire(backend, f"child{n}-{round}")).ok
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    for round in range(100):
        assert backend.release(_acquire(backend, f"parent-{round}")).ok
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4


def test_a_child_does_not_use_the_connection_on_which_its_parent_waits(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    far = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")

    def wait_for(key: str) -> str:
        with lock(backend, key, ttl_ms=60_000, acquisition=far) as held:
            return held.fence

    def wait_and_be_woken() -> None:
        childs_own = backend.acquire("of the child", ttl_ms=60_000)
        assert childs_own.ok
        with call_later(0.2, childs_own.release):
            wait_for("of the child")

    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait_for, "k")
        wait_until(lambda: observer.info("clients")["blocked_clients"] == 1)
        in_child(wait_and_be_woken)
        holder.release()
        assert waiting.result(timeout=20) > holder.fence


def _acquire(backend: RedisBackend, key: str) -> str:
    result = backend.acquire(key)
    assert result.ok
    return result.lock_id
