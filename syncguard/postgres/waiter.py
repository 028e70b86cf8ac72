"""Waits for a lock: until a release is announced, or for the time of the backoff. Blocking.

``Waiting`` is the state that the blocking and the asyncio waiter share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from syncguard._backend.deadline import SLICE_S, Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard.errors import LockError
from syncguard.postgres.statement_calls import Call
from syncguard.postgres.wake_listener import Listener, Subscription
from syncguard.types import Signal

POLL_S: Final = (0.05, 1.0)
"""Behind a pooler: the first and the longest interval between two looks at the lock."""


MIN_LOOK_S: Final = 0.5
"""A look at the lock may take this long, however little of the wait is left."""


def look_until(deadline: float, signal: Signal | None) -> Deadline:
    """When a look at the lock must end, during a wait until the deadline."""
    return Deadline(max(deadline, time.monotonic() + MIN_LOOK_S) * 1000, signal)


class Waiting:
    """One waiter's place at the listener."""

    def __init__(self, listener: Listener, payload: str, wake: Callable[[], None]) -> None:
        self._listener = listener
        self._subscription = Subscription(payload, wake)
        self._is_subscribed = False
        self._acquired = False
        self._poll_s = self._poll_at = 0.0

    def before_attempt(self) -> None:
        """If somebody listens already, do not miss a release after the attempt."""
        if self._listener.is_active:
            self._subscribe()
        self._subscription.notified = False

    def after_attempt(self, *, acquired: bool) -> None:
        self._acquired = acquired

    def before_wait(self) -> None:
        """Begin to listen."""
        self._poll_s, self._poll_at = POLL_S[0], time.monotonic() + POLL_S[0]
        if not self._is_subscribed:
            # A release may have been announced since the attempt, before anybody listened.
            self._subscription.must_check = self._listener.is_active
            self._subscribe()
        self._listener.start()

    def sleep_s(self, deadline: float, signal: Signal | None) -> float:
        """How long to sleep at most; 0 or less at the deadline."""
        left = deadline - time.monotonic()
        if self._listener.is_pooled:
            left = min(left, max(self._poll_at - time.monotonic(), 0.001))
        return left if signal is None else min(left, SLICE_S)

    @property
    def is_notified(self) -> bool:
        return self._subscription.notified

    def take_check(self) -> bool:
        """Whether to look if the lock is free, once."""
        must, self._subscription.must_check = self._subscription.must_check, False
        if self._listener.is_pooled and time.monotonic() >= self._poll_at:
            # Nobody can be woken here, so look now and then.
            self._poll_s = min(self._poll_s * 2, POLL_S[1])
            self._poll_at = time.monotonic() + self._poll_s
            return True
        return must

    def close(self) -> None:
        if self._is_subscribed:
            self._is_subscribed = False
            self._listener.unsubscribe(self._subscription)
        # A waiter that acquired the lock wakes the next one when it releases.
        if self._subscription.notified and not self._acquired:
            self._subscription.notified = False
            self._listener.pass_on(self._subscription.payload)

    def _subscribe(self) -> None:
        if not self._is_subscribed:
            self._is_subscribed = True
            self._listener.subscribe(self._subscription)


class Attempts(Protocol):
    """The part of a blocking backend that a waiter needs."""

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]: ...

    def run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None
    ) -> Acquired | Refusal: ...

    def is_locked_until(self, key: str, deadline: Deadline) -> bool: ...

    def undo(self, lock_id: str) -> None: ...


class PostgresWaiter:
    """One blocking waiter."""

    def __init__(self, backend: Attempts, listener: Listener, key: str, payload: str) -> None:
        self._backend = backend
        self._key = key
        self._event = threading.Event()
        self._waiting = Waiting(listener, payload, self._event.set)
        self._attempted: str | None = None

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        return self._attempt(ttl_ms, holder, wait_ms, None)

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> Acquired | Refusal:
        return self._attempt(ttl_ms, holder, wait_ms, deadline)

    def _attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline | None
    ) -> Acquired | Refusal:
        call = self._backend.acquire_call(self._key, ttl_ms, holder, wait_ms)
        self._attempted = call.lock_id
        self._waiting.before_attempt()
        answer = self._backend.run_acquire(call, ttl_ms, deadline)
        self._waiting.after_attempt(acquired=not isinstance(answer, Refusal))
        return answer

    def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        self._waiting.before_wait()
        while True:
            self._event.clear()
            if self._waiting.is_notified or self._is_free(deadline, signal):
                return True
            check_signal(signal)
            sleep_s = self._waiting.sleep_s(deadline, signal)
            if sleep_s <= 0:
                return False
            self._event.wait(sleep_s)

    def close(self) -> None:
        self._waiting.close()

    def undo(self) -> None:
        try:
            self._waiting.close()  # in case close() was interrupted
        finally:
            # Releasing a lock id that was never stored does no harm.
            if self._attempted is not None:
                self._backend.undo(self._attempted)

    def _is_free(self, deadline: float, signal: Signal | None) -> bool:
        if not self._waiting.take_check():
            return False
        try:
            return not self._backend.is_locked_until(self._key, look_until(deadline, signal))
        except LockError:
            return False  # the next attempt reports the error
