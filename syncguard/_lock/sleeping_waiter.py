"""Wait for a lock. ``open_waiter`` returns the backend's own waiter if it has one.

Else it returns a waiter that sleeps between attempts.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from syncguard._backend.optional import AsyncWaiter, AsyncWakeable, Refusal, Waiter, Wakeable
from syncguard._backend.required import AsyncLockBackend, LockBackend, check_signal
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard.types import Signal

SLICE_MS: Final = 50
"""How often a sleeping waiter checks its signal: an abort must take effect within 100 ms."""


def open_waiter(backend: LockBackend, key: str) -> Waiter:
    """The backend's own waiter, or one that sleeps."""
    if isinstance(backend, Wakeable):
        return backend.open_waiter(key)
    return SleepingWaiter(backend, key)


def open_async_waiter(backend: AsyncLockBackend, key: str) -> AsyncWaiter:
    """The backend's own waiter, or one that sleeps."""
    if isinstance(backend, AsyncWakeable):
        return backend.open_waiter(key)
    return AsyncSleepingWaiter(backend, key)


def sleep(ms: float, signal: Signal | None) -> None:
    """Sleep this long. Raises ``Aborted`` if the signal is set."""
    deadline = time.monotonic() + ms / 1000
    while True:
        check_signal(signal)
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(left if signal is None else min(left, SLICE_MS / 1000))


async def sleep_async(ms: float, signal: Signal | None) -> None:
    """The same for asyncio."""
    deadline = time.monotonic() + ms / 1000
    while True:
        check_signal(signal)
        left = deadline - time.monotonic()
        if left <= 0:
            return
        await asyncio.sleep(left if signal is None else min(left, SLICE_MS / 1000))


class SleepingWaiter:
    """A waiter that only sleeps: a release does not wake it."""

    def __init__(self, backend: LockBackend, key: str) -> None:
        self._backend = backend
        self._key = key
        self._taken: str | None = None

    def attempt(self, ttl_ms: int, holder: str | None, _wait_ms: int) -> Acquired | Refusal:
        result = self._backend.acquire(self._key, ttl_ms, holder=holder)
        if not result.ok:
            return Refusal()
        self._taken = result.lock_id
        return result

    def wait(self, ms: float, signal: Signal | None) -> bool:
        sleep(ms, signal)
        return False

    def close(self) -> None: ...

    def undo(self) -> None:
        if self._taken is not None:
            self._backend.release(self._taken)


class AsyncSleepingWaiter:
    """A waiter that only sleeps: a release does not wake it."""

    def __init__(self, backend: AsyncLockBackend, key: str) -> None:
        self._backend = backend
        self._key = key

    async def attempt(
        self, ttl_ms: int, holder: str | None, _wait_ms: int
    ) -> AsyncAcquired | Refusal:
        result = await self._backend.acquire(self._key, ttl_ms, holder=holder)
        return result if result.ok else Refusal()

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        await sleep_async(ms, signal)
        return False

    async def close(self) -> None: ...
