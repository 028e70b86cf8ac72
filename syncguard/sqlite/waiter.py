"""Waits for a lock by reading its row, again and again. No process can wake another one.

A read takes tens of microseconds and disturbs no writer. The pauses grow with the wait: a lock that
is held for a moment is taken at once, and a long wait costs next to nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Final, Protocol

from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._embedded.operations import Operation
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard.types import Signal

_PAUSES_S: Final = (0.001, 0.010)
_GROWTH: Final = 1.3


def pauses_s(ms: float) -> Iterator[float]:
    """The pauses between two looks, until the time is over. Random, so that waiters alternate."""
    deadline = time.monotonic() + ms / 1000
    pause, longest = _PAUSES_S
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, pause * random.uniform(0.5, 1.5))  # noqa: S311
        pause = min(pause * _GROWTH, longest)


class Attempts(Protocol):
    """The part of a blocking backend that a waiter needs."""

    def acquire_operation(
        self, key: str, ttl_ms: int, holder: str | None
    ) -> Operation[Granted | Refusal]: ...

    def run_acquire(
        self,
        operation: Operation[Granted | Refusal],
        ttl_ms: int,
        *,
        deadline: Deadline | None = None,
    ) -> Acquired | Refusal: ...

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool: ...

    def undo(self, lock_id: str) -> None: ...


class SQLiteWaiter:
    """One waiter of blocking code."""

    def __init__(self, backend: Attempts, key: str) -> None:
        self._backend = backend
        self._key = key
        self._lock_id = ""

    def attempt(self, ttl_ms: int, holder: str | None, _wait_ms: int) -> Acquired | Refusal:
        return self._attempt(ttl_ms, holder, None)

    def attempt_until(
        self, ttl_ms: int, holder: str | None, _wait_ms: int, deadline: Deadline
    ) -> Acquired | Refusal:
        return self._attempt(ttl_ms, holder, deadline)

    def wait(self, ms: float, signal: Signal | None) -> bool:
        for pause in pauses_s(ms):
            check_signal(signal)
            if not self._backend.is_locked(self._key, signal=signal):
                return True
            time.sleep(pause)
        return not self._backend.is_locked(self._key, signal=signal)

    def close(self) -> None: ...

    def undo(self) -> None:
        if self._lock_id:
            self._backend.undo(self._lock_id)

    def _attempt(
        self, ttl_ms: int, holder: str | None, deadline: Deadline | None
    ) -> Acquired | Refusal:
        operation = self._backend.acquire_operation(self._key, ttl_ms, holder)
        self._lock_id = operation.lock_id
        return self._backend.run_acquire(operation, ttl_ms, deadline=deadline)


class AsyncAttempts(Protocol):
    """The part of an asyncio backend that a waiter needs."""

    async def attempt(
        self, key: str, ttl_ms: int, holder: str | None, deadline: Deadline | None
    ) -> AsyncAcquired | Refusal: ...

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool: ...


class AsyncSQLiteWaiter:
    """One waiter of asyncio code."""

    def __init__(self, backend: AsyncAttempts, key: str) -> None:
        self._backend = backend
        self._key = key

    async def attempt(
        self, ttl_ms: int, holder: str | None, _wait_ms: int
    ) -> AsyncAcquired | Refusal:
        return await self._backend.attempt(self._key, ttl_ms, holder, None)

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, _wait_ms: int, deadline: Deadline
    ) -> AsyncAcquired | Refusal:
        return await self._backend.attempt(self._key, ttl_ms, holder, deadline)

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        for pause in pauses_s(ms):
            if not await self._backend.is_locked(self._key, signal=signal):
                return True
            await asyncio.sleep(pause)
        return not await self._backend.is_locked(self._key, signal=signal)

    async def close(self) -> None: ...
