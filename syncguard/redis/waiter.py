"""A waiter for one lock, blocking: it tries, waits for a wake-up, and tries again.

When acquire.lua refuses a waiter, it sets a flag. A release that finds the flag pushes one wake-up
to the lock's wake-up list. ``wake_listener`` receives it for all waiters of this process.

A consumed wake-up causes no harm if an attempt follows: the attempt acquires the lock, or a new
holder has it, and the release of that holder pushes another wake-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard._lock.sleeping_waiter import sleep
from syncguard.redis.local_waiters import WakeList
from syncguard.redis.names import LockNames
from syncguard.redis.script_calls import Call
from syncguard.redis.wake_listener import Place, WakeListener
from syncguard.types import Signal

MIN_LISTEN_MS: Final = 10
"""A shorter wait is not worth a BLPOP: the waiter only sleeps."""


class Attempts(Protocol):
    """The part of a blocking Redis backend that a waiter needs."""

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]: ...

    def run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None = None
    ) -> Acquired | Refusal: ...

    def pass_on_call(self, key: str) -> Call[bool]: ...

    def ring(self, bell: str, deadline: Deadline) -> None: ...

    def undo(self, lock_id: object) -> None: ...


class RedisWaiter:
    """One blocking waiter."""

    def __init__(
        self,
        backend: Attempts,
        find_listener: Callable[[LockNames], WakeListener | None],
        names: LockNames,
    ) -> None:
        self._backend = backend
        self._find_listener = find_listener
        self._names = names
        self._listener: WakeListener | None = None
        self._place: Place | None = None
        self._woken = False
        self._acquired = False
        self._attempted: str | None = None

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        return self.attempt_until(ttl_ms, holder, wait_ms, None)

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline | None
    ) -> Acquired | Refusal:
        call = self._backend.acquire_call(self._names.key, ttl_ms, holder, wait_ms)
        self._attempted = call.lock_id
        answer = self._backend.run_acquire(call, ttl_ms, deadline)
        # Reset only now: a failed attempt has not used the wake-up, and must pass it on.
        self._woken = False
        self._acquired = not isinstance(answer, Refusal)
        return answer

    def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        place = self._join(ms)
        if place is not None:
            assert self._listener is not None
            if self._listener.join(place):
                self._backend.ring(self._listener.bell, Deadline.after(ms, signal))
            self._woken = self._listener.wait(place, deadline, signal)
            if self._woken:
                place.use_wake_up()
            return self._woken
        sleep(ms, signal)
        return False

    def close(self) -> None:
        if self._place is not None:
            assert self._listener is not None
            self._listener.leave(self._place, has_wake_up=self._woken, acquired=self._acquired)
            self._place = None

    def undo(self) -> None:
        try:
            self.close()  # in case it was interrupted
        finally:
            # Releasing a lock id that was never stored does nothing.
            if self._attempted is not None:
                self._backend.undo(self._attempted)

    def _join(self, ms: float) -> Place | None:
        """The place at the listener; None: only sleep."""
        if self._place is None and ms < MIN_LISTEN_MS:
            return None
        listener = self._find_listener(self._names)
        if listener is not self._listener:  # the lock is on another node of the cluster now
            self.close()
        if listener is None:
            return None
        if self._place is None:
            wake_list = WakeList.of(self._names.wake, self._backend.pass_on_call(self._names.key))
            self._listener, self._place = listener, Place(wake_list)
        return self._place
