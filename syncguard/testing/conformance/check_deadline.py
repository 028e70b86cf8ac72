"""Deadlines, an optional part: an attempt that gets no answer ends when its time is over."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable

import pytest

from syncguard.backend import (
    Acquired,
    AcquiresUntil,
    AsyncBoundedWaiter,
    BoundedWaiter,
    Contended,
    Deadline,
    LockBackend,
    LockError,
    Refusal,
    Wakeable,
    offers,
)
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    Outage,
    acquired,
    eventually,
    require_part,
)

AttemptUntil = Callable[[Deadline], object]
"""Tries once to acquire the lock ``k``, within a deadline."""


class DeadlineConformance(ConformanceFixtures):
    """What ``BoundedWaiter`` and ``AcquiresUntil`` promise, where a backend offers one of them."""

    @pytest.fixture
    def attempt_until(self, make_backend: MakeBackend) -> AttemptUntil:
        backend = make_backend()
        if offers(backend, Wakeable):
            return _waiter_attempt(backend)
        require_part(backend, AcquiresUntil)
        assert isinstance(backend, AcquiresUntil)
        acquire_until = backend.acquire_until
        return lambda deadline: acquire_until("k", LONG_MS, deadline)

    def test_an_attempt_with_a_deadline_acquires_a_free_lock(
        self, attempt_until: AttemptUntil, backend: LockBackend
    ) -> None:
        lock = attempt_until(Deadline.after(LONG_MS, threading.Event()))
        assert isinstance(lock, Acquired)
        assert backend.is_locked("k")
        assert lock.release().ok

    def test_an_attempt_with_a_deadline_is_refused_a_held_lock(
        self, attempt_until: AttemptUntil, backend: LockBackend
    ) -> None:
        acquired(backend, "k")
        assert isinstance(attempt_until(Deadline.after(LONG_MS)), Refusal | Contended)

    def test_an_attempt_whose_time_is_over_acquires_nothing(
        self, attempt_until: AttemptUntil, backend: LockBackend
    ) -> None:
        with pytest.raises(LockError) as caught:
            attempt_until(Deadline.after(-1))
        assert caught.value.code == "NetworkTimeout"
        eventually(lambda: not backend.is_locked("k"))

    def test_an_attempt_whose_signal_is_set_acquires_nothing(
        self, attempt_until: AttemptUntil, backend: LockBackend
    ) -> None:
        signal = threading.Event()
        signal.set()
        with pytest.raises(LockError) as caught:
            attempt_until(Deadline.after(LONG_MS, signal))
        assert caught.value.code == "Aborted"
        eventually(lambda: not backend.is_locked("k"))

    def test_an_attempt_on_a_store_that_does_not_answer_ends(
        self, attempt_until: AttemptUntil, outage: Outage
    ) -> None:
        outage()
        began = time.monotonic()
        with pytest.raises(LockError) as caught:
            attempt_until(Deadline.after(300))
        assert caught.value.code in ("ServiceUnavailable", "NetworkTimeout")
        assert time.monotonic() - began < LONG_MS / 1000


def _waiter_attempt(backend: LockBackend) -> AttemptUntil:
    assert isinstance(backend, Wakeable)
    waiter = backend.open_waiter("k")
    own: object = inspect.unwrap(waiter)  # type: ignore[arg-type]
    if not isinstance(own, BoundedWaiter | AsyncBoundedWaiter):
        pytest.skip("the waiters of this backend do not offer BoundedWaiter")
    assert isinstance(waiter, BoundedWaiter)
    attempt_until = waiter.attempt_until

    def attempt(deadline: Deadline) -> object:
        try:
            return attempt_until(LONG_MS, None, 0, deadline)
        finally:
            waiter.close()

    return attempt
