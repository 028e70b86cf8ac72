"""Waiting, an optional part: a waiter tries, waits, is woken by a release, and is closed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncguard.backend import LockBackend, LockError, Refusal, Waiter, Wakeable
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    acquired,
    expired,
    require_part,
)

WAIT_MS = 20_000
"""The longest wait of a waiter. A test that waits so long has failed."""


class WaitingConformance(ConformanceFixtures):
    """What ``Wakeable`` promises, where a backend offers it."""

    @pytest.fixture
    def waiter(self, make_backend: MakeBackend) -> Waiter:
        backend = make_backend()
        require_part(backend, Wakeable)
        assert isinstance(backend, Wakeable)
        return backend.open_waiter("k")

    def test_a_waiter_acquires_a_free_lock(self, waiter: Waiter, backend: LockBackend) -> None:
        lock = waiter.attempt(LONG_MS, "me", 0)
        waiter.close()
        assert not isinstance(lock, Refusal)
        info = backend.lookup(lock_id=lock.lock_id)
        assert info is not None
        assert (info.fence, info.holder) == (lock.fence, "me")
        assert lock.release().ok

    def test_a_held_lock_refuses_the_waiter_and_stays_as_it_is(
        self, waiter: Waiter, backend: LockBackend
    ) -> None:
        acquired(backend, "k")
        before = backend.lookup(key="k")
        assert isinstance(waiter.attempt(LONG_MS, None, 0), Refusal)
        waiter.close()
        assert backend.lookup(key="k") == before

    def test_the_remaining_time_of_a_refusal_is_at_most_the_ttl(
        self, waiter: Waiter, backend: LockBackend
    ) -> None:
        acquired(backend, "k", LONG_MS)
        answer = waiter.attempt(LONG_MS, None, 0)
        waiter.close()
        assert isinstance(answer, Refusal)
        assert answer.remaining_ms is None or 0 <= answer.remaining_ms <= LONG_MS

    def test_a_release_wakes_the_waiter(self, waiter: Waiter, backend: LockBackend) -> None:
        held = acquired(backend, "k")
        assert isinstance(waiter.attempt(LONG_MS, None, WAIT_MS), Refusal)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(waiter.wait, WAIT_MS, None)
            held.release()
            assert waiting.result() is True
        answer = waiter.attempt(LONG_MS, None, 0)
        waiter.close()
        assert not isinstance(answer, Refusal)

    def test_a_release_before_the_wait_began_is_not_missed(
        self, waiter: Waiter, backend: LockBackend
    ) -> None:
        held = acquired(backend, "k")
        assert isinstance(waiter.attempt(LONG_MS, None, WAIT_MS), Refusal)
        held.release()
        assert waiter.wait(WAIT_MS, None) is True
        waiter.close()

    def test_a_wait_without_a_release_ends_after_its_time(
        self, waiter: Waiter, backend: LockBackend
    ) -> None:
        acquired(backend, "k")
        assert isinstance(waiter.attempt(LONG_MS, None, 60), Refusal)
        assert waiter.wait(60, None) is False
        waiter.close()

    def test_a_set_signal_ends_the_wait(self, waiter: Waiter, backend: LockBackend) -> None:
        acquired(backend, "k")
        assert isinstance(waiter.attempt(LONG_MS, None, WAIT_MS), Refusal)
        signal = threading.Event()
        signal.set()
        with pytest.raises(LockError) as caught:
            waiter.wait(WAIT_MS, signal)
        waiter.close()
        assert caught.value.code == "Aborted"

    def test_a_waiter_acquires_an_expired_lock(self, waiter: Waiter, backend: LockBackend) -> None:
        expired(backend, "k")
        answer = waiter.attempt(LONG_MS, None, 0)
        waiter.close()
        assert not isinstance(answer, Refusal)
