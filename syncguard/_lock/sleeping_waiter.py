"""Wait for a lock. ``open_waiter`` returns the backend's own waiter if it has one.

Else it returns a waiter that sleeps between attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from syncguard._backend.deadline import SLICE_S, Deadline
from syncguard._backend.optional import AsyncWaiter, Refusal, Waiter
from syncguard._backend.required import AsyncLockBackend, LockBackend, check_signal
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard.types import Contended, Signal

SLICE_MS: Final = SLICE_S * 1000
"""How often a sleeping waiter checks its signal: an abort must take effect within 100 ms."""


def open_waiter(backend: LockBackend, key: str) -> Waiter:
    """The backend's own waiter, or one that sleeps."""
    # Not isinstance with the protocol Wakeable: that costs as much as all the rest of a lock().
    own: Callable[[str], Waiter] | None = getattr(backend, "open_waiter", None)
    return SleepingWaiter(backend, key) if own is None else own(key)


def open_async_waiter(backend: AsyncLockBackend, key: str) -> AsyncWaiter:
    """The backend's own waiter, or one that sleeps."""
    own: Callable[[str], AsyncWaiter] | None = getattr(backend, "open_waiter", None)
    return AsyncSleepingWaiter(backend, key) if own is None else own(key)


def attempt(
    waiter: Waiter, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
) -> Acquired | Refusal:
    """Try once, within the deadline if this waiter can do that (``BoundedWaiter``)."""
    # Not isinstance with the protocol: that takes longer than the rest of an attempt's Python.
    until: Callable[..., Acquired | Refusal] | None = getattr(waiter, "attempt_until", None)
    if until is None:
        return waiter.attempt(ttl_ms, holder, wait_ms)
    return until(ttl_ms, holder, wait_ms, deadline)


def attempt_async(
    waiter: AsyncWaiter, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
) -> Awaitable[AsyncAcquired | Refusal]:
    """The same for asyncio."""
    until: Callable[..., Awaitable[AsyncAcquired | Refusal]] | None = getattr(
        waiter, "attempt_until", None
    )
    if until is None:
        return waiter.attempt(ttl_ms, holder, wait_ms)
    return until(ttl_ms, holder, wait_ms, deadline)


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
        return self._answer(self._backend.acquire(self._key, ttl_ms, holder=holder))

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> Acquired | Refusal:
        until: Callable[..., Acquired | Contended] | None = getattr(
            self._backend, "acquire_until", None
        )
        if until is None:
            return self.attempt(ttl_ms, holder, wait_ms)
        return self._answer(until(self._key, ttl_ms, deadline, holder=holder))

    def _answer(self, result: Acquired | Contended) -> Acquired | Refusal:
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

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> AsyncAcquired | Refusal:
        until: Callable[..., Awaitable[AsyncAcquired | Contended]] | None = getattr(
            self._backend, "acquire_until", None
        )
        if until is None:
            return await self.attempt(ttl_ms, holder, wait_ms)
        result = await until(self._key, ttl_ms, deadline, holder=holder)
        return result if result.ok else Refusal()

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        await sleep_async(ms, signal)
        return False

    async def close(self) -> None: ...
