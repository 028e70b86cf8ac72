"""Deadlines: how much time is left, and which method of a backend gets to know it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from syncguard import LockError, NetworkTimeout
from syncguard._backend import deadline
from syncguard._lock.sleeping_waiter import attempt, attempt_async, open_async_waiter, open_waiter
from syncguard.backend import CONTENDED, Deadline, Refusal

DEADLINE = Deadline.after(60_000)
"""Compared only: it may have passed when a test runs."""


class Plain:
    """A backend of a third party, which has neither waiters nor deadlines."""

    calls = ()

    def acquire(self, key, ttl_ms, *, holder=None):
        self.calls = ("acquire", key, ttl_ms, holder)
        return CONTENDED


class WithDeadlines(Plain):
    def acquire_until(self, key, ttl_ms, deadline, /, *, holder=None):
        self.calls = ("acquire_until", key, ttl_ms, deadline, holder)
        return CONTENDED


class AsyncPlain(Plain):
    async def acquire(self, key, ttl_ms, *, holder=None):
        return super().acquire(key, ttl_ms, holder=holder)


class AsyncWithDeadlines(WithDeadlines):
    async def acquire_until(self, key, ttl_ms, deadline, /, *, holder=None):
        return super().acquire_until(key, ttl_ms, deadline, holder=holder)


class PlainWaiter:
    """A waiter of a third party, which has no deadlines."""

    def attempt(self, *arguments):
        return arguments


class BoundedWaiter(PlainWaiter):
    def attempt_until(self, *arguments):
        return arguments


def test_at_the_deadline_itself_no_time_is_left(monkeypatch):
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: 5.0))
    assert Deadline(5_500).left_s() == 0.5
    with pytest.raises(NetworkTimeout):
        Deadline(5_000).left_s()


def test_the_time_that_is_left_shrinks_to_nothing():
    assert 0 < Deadline.after(3_600_000).left_s() <= 3_600
    with pytest.raises(LockError) as caught:
        Deadline.after(0).left_s()
    assert caught.value.code == "NetworkTimeout"


def test_with_a_signal_code_blocks_for_short_slices():
    assert Deadline.after(3_600_000).slice_s() > 1
    assert Deadline.after(3_600_000, threading.Event()).slice_s() <= 0.05


def test_a_set_signal_aborts():
    signal = threading.Event()
    signal.set()
    with pytest.raises(LockError) as caught:
        Deadline.after(60_000, signal).left_s()
    assert caught.value.code == "Aborted"


@pytest.mark.parametrize(
    ("waiter", "expected"),
    [(PlainWaiter(), (1, "me", 2)), (BoundedWaiter(), (1, "me", 2, DEADLINE))],
)
def test_a_waiter_gets_the_deadline_if_it_can_use_it(waiter, expected):
    assert attempt(waiter, 1, "me", 2, DEADLINE) == expected
    assert attempt_async(waiter, 1, "me", 2, DEADLINE) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Plain, ("acquire", "k", 1, "me")),
        (WithDeadlines, ("acquire_until", "k", 1, DEADLINE, "me")),
    ],
)
def test_a_backend_without_waiters_gets_the_deadline_if_it_can_use_it(kind, expected):
    backend = kind()
    assert attempt(open_waiter(backend, "k"), 1, "me", 2, DEADLINE) == Refusal()
    assert backend.calls == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (AsyncPlain, ("acquire", "k", 1, "me")),
        (AsyncWithDeadlines, ("acquire_until", "k", 1, DEADLINE, "me")),
    ],
)
def test_an_asyncio_backend_gets_the_deadline_if_it_can_use_it(kind, expected):
    backend = kind()

    async def attempt_once():
        return await attempt_async(open_async_waiter(backend, "k"), 1, "me", 2, DEADLINE)

    assert asyncio.run(attempt_once()) == Refusal()
    assert backend.calls == expected
