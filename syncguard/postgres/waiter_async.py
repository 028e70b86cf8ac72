"""Waits for a lock, for asyncio. ``waiter`` describes how it works."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

from syncguard._backend.deadline import Deadline
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.handles import AsyncAcquired
from syncguard.errors import LockError
from syncguard.postgres.waiter import Waiting, look_until
from syncguard.postgres.wake_listener import Listener
from syncguard.types import Signal


class AsyncAttempts(Protocol):
    """The part of an asyncio backend that a waiter needs."""

    async def attempt(
        self,
        key: str,
        ttl_ms: int,
        holder: str | None,
        wait_ms: int,
        deadline: Deadline | None,
    ) -> AsyncAcquired | Refusal: ...

    async def is_locked_until(self, key: str, deadline: Deadline) -> bool: ...


class AsyncPostgresWaiter:
    """One asyncio waiter."""

    def __init__(self, backend: AsyncAttempts, listener: Listener, key: str, payload: str) -> None:
        self._backend = backend
        self._key = key
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = Waiting(listener, payload, self._wake)

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        return await self._attempt(ttl_ms, holder, wait_ms, None)

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> AsyncAcquired | Refusal:
        return await self._attempt(ttl_ms, holder, wait_ms, deadline)

    async def _attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline | None
    ) -> AsyncAcquired | Refusal:
        self._loop = asyncio.get_running_loop()
        self._waiting.before_attempt()
        answer = await self._backend.attempt(self._key, ttl_ms, holder, wait_ms, deadline)
        self._waiting.after_attempt(acquired=not isinstance(answer, Refusal))
        return answer

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        self._loop = asyncio.get_running_loop()
        deadline = time.monotonic() + ms / 1000
        self._waiting.before_wait()
        while True:
            self._event.clear()
            if self._waiting.is_notified or await self._is_free(deadline, signal):
                return True
            check_signal(signal)
            sleep_s = self._waiting.sleep_s(deadline, signal)
            if sleep_s <= 0:
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._event.wait(), sleep_s)

    async def close(self) -> None:
        self._waiting.close()

    async def _is_free(self, deadline: float, signal: Signal | None) -> bool:
        if not self._waiting.take_check():
            return False
        try:
            return not await self._backend.is_locked_until(self._key, look_until(deadline, signal))
        except LockError:
            return False  # the next attempt reports the error

    def _wake(self) -> None:
        """Called by the thread of the listener."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)
