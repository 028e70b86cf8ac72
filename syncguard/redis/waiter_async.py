"""A waiter for one lock, for asyncio. ``waiter`` describes how it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from syncguard._backend.deadline import Deadline
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.cancellation import settle
from syncguard._lock.handles import AsyncAcquired
from syncguard._lock.sleeping_waiter import sleep_async
from syncguard.redis.local_waiters import WakeList
from syncguard.redis.names import LockNames
from syncguard.redis.script_calls import Call
from syncguard.redis.waiter import MIN_LISTEN_MS
from syncguard.redis.wake_listener_async import AsyncPlace, AsyncWakeListener
from syncguard.types import Signal


class AsyncAttempts(Protocol):
    """The part of an asyncio Redis backend that a waiter needs."""

    async def attempt(
        self,
        key: str,
        ttl_ms: int,
        holder: str | None,
        wait_ms: int,
        deadline: Deadline | None = None,
    ) -> AsyncAcquired | Refusal: ...

    def pass_on_call(self, key: str) -> Call[bool]: ...

    async def ring(self, bell: str) -> None: ...


class AsyncRedisWaiter:
    """One asyncio waiter."""

    def __init__(
        self,
        backend: AsyncAttempts,
        find_listener: Callable[[LockNames], AsyncWakeListener | None],
        names: LockNames,
    ) -> None:
        self._backend = backend
        self._find_listener = find_listener
        self._names = names
        self._listener: AsyncWakeListener | None = None
        self._place: AsyncPlace | None = None
        self._woken = False
        self._acquired = False

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        return await self.attempt_until(ttl_ms, holder, wait_ms, None)

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline | None
    ) -> AsyncAcquired | Refusal:
        answer = await self._backend.attempt(self._names.key, ttl_ms, holder, wait_ms, deadline)
        self._woken = False
        self._acquired = not isinstance(answer, Refusal)
        return answer

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        place = await self._join(ms)
        if place is None:
            await sleep_async(ms, signal)
            return False
        assert self._listener is not None
        if self._listener.join(place):
            await self._backend.ring(self._listener.bell)
        self._woken = await self._listener.wait(place, deadline, signal)
        if self._woken:
            place.use_wake_up()
        return self._woken

    async def close(self) -> None:
        if self._place is not None:
            assert self._listener is not None
            place, self._place = self._place, None
            await self._listener.leave(place, has_wake_up=self._woken, acquired=self._acquired)

    async def _join(self, ms: float) -> AsyncPlace | None:
        """The place at the listener; None: only sleep."""
        if self._place is None and ms < MIN_LISTEN_MS:
            return None
        listener = self._find_listener(self._names)
        if listener is not self._listener:  # the lock is on another node of the cluster now
            await settle(self.close())  # if cancelled: what it owes to others is passed on
        if listener is None:
            return None
        if self._place is None:
            wake_list = WakeList.of(self._names.wake, self._backend.pass_on_call(self._names.key))
            self._listener, self._place = listener, AsyncPlace(wake_list)
        return self._place
