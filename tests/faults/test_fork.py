"""Fork while a lock is held: the parent holds the lock, and the child holds nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from wait_until import TTL_MS, wait_until, wait_until_extended

from syncguard import Acquisition, LockError, LockEvent, lock, with_telemetry
from syncguard.redis import RedisBackend
from syncguard.redis._transport.connections import runner_pool
from syncguard.redis.waiter import Listeners

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
    shared = lock(backend, "k", ttl_ms=20_000, acquisition=Acquisition(max_retries=0))

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
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)
        in_child(backend.close)
        wait_until_extended(held)
        wait_until_extended(held)
    assert not caplog.records


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


def test_waiters_of_the_parent_do_not_count_in_the_child(backend: RedisBackend) -> None:
    pool = runner_pool(backend._client)
    assert pool is not None
    listeners = Listeners()
    listeners._inside = set(range(pool.max_connections))
    assert not listeners.admit(object(), pool)

    def listen() -> None:
        assert listeners.admit(object(), pool)

    in_child(listen)
    assert not listeners.admit(object(), pool)


def _acquire(backend: RedisBackend, key: str) -> str:
    result = backend.acquire(key)
    assert result.ok
    return result.lock_id
