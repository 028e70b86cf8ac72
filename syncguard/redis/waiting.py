"""Waiting on a wake-up list instead of sleeping blind.

A refused waiter has left a flag (acquire.lua does); whoever releases sees it and pushes one
wake-up; the waiter blocks on that list with BLPOP, on a connection of the pool, and watches the
socket rather than trusting the server's timer: an idle Redis ends a BLPOP up to 100 ms late.
So the list may still be open when the time is over. The next attempt does not care, and the next
wait goes on with it; only leaving has to hang up, and then passes on what it may have swallowed.

Why a swallowed wake-up is harmless when an attempt follows: the attempt does what the wake-up
asked for, and if it is refused, then by a new holder, whose release wakes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import redis

from syncguard.backend import Refusal, check_signal
from syncguard.handles import Acquired, AsyncAcquired
from syncguard.redis.connections import (
    AsyncConnection,
    AsyncPool,
    Connection,
    Pool,
    socket_timeout_ms,
    take,
    take_async,
)
from syncguard.types import Signal
from syncguard.waiting import SLICE_MS, sleep, sleep_async

if TYPE_CHECKING:
    from syncguard.redis.async_client import AsyncRedisBackend
    from syncguard.redis.client import RedisBackend

_WORTH_BLOCKING_MS: Final = 10
"""Below this a plain sleep is as good: and Redis 6.2 takes 1 ms or less for 'for ever'."""

_SERVER_LATENESS_MS: Final = 100
_SOCKET_SHARE: Final = 0.8
"""A wait uses at most this share of the client's own time-out."""

_UNREACHED_S: Final = 3600.0
"""For redis-py's reader, which must not judge: the server ends the BLPOP, or we hang up."""


_FAULTS: Final = (redis.RedisError, OSError)


def _blpop_seconds(ms: float) -> str:
    """What to tell the server: short of the wait, because it is late, but never 0."""
    return f"{max(ms - _SERVER_LATENESS_MS, ms / 2, _WORTH_BLOCKING_MS / 2) / 1000:.3f}"


def _patience_ms(pool: Pool | AsyncPool) -> float:
    timeout_ms = socket_timeout_ms(pool)
    return float("inf") if timeout_ms is None else timeout_ms * _SOCKET_SHARE


class Listeners:
    """How many waiters of a backend listen at once: at most half of the pool's connections.

    The others sleep. Were every connection taken by a waiter, the holder could not release.
    """

    def __init__(self) -> None:
        # A list, because its append and pop need no lock, which a fork could leave locked.
        self._inside: list[None] = []

    def admit(self, pool: Pool | AsyncPool) -> bool:
        if len(self._inside) >= pool.max_connections // 2:
            return False
        self._inside.append(None)
        return True

    def leave(self) -> None:
        self._inside.pop()


class RedisWaiter:
    """One blocking waiter."""

    def __init__(
        self,
        backend: RedisBackend,
        listeners: Listeners,
        pool: Callable[[], Pool | None],
        key: str,
        wake: str,
    ) -> None:
        self._backend = backend
        self._listeners = listeners
        self._find_pool = pool
        self._key = key
        self._wake = wake
        self._pool: Pool | None = None
        self._connection: Connection | None = None
        self._listening = False
        self._woken = False

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        answer = self._backend._attempt(self._key, ttl_ms, holder, wait_ms)
        # Only now: an attempt that failed has not used the wake-up, and must pass it on.
        self._woken = False
        return answer

    def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        try:
            self._woken = ms >= _WORTH_BLOCKING_MS and self._listen(deadline, signal)
        except _FAULTS:
            # The list is a convenience. Without it, this is plain backoff, and the attempt that
            # follows meets the same server and says what is wrong with it.
            self._hang_up()
        if self._woken:
            return True
        sleep(max(0.0, deadline - time.monotonic()) * 1000, signal)
        return False

    def close(self) -> None:
        must_pass_on = self._listening or self._woken
        self._hang_up()
        if must_pass_on:
            with contextlib.suppress(Exception):
                self._backend._pass_on(self._key)

    def _listen(self, deadline: float, signal: Signal | None) -> bool:
        connection = self._connect()
        if connection is None:
            return False
        while (left := deadline - time.monotonic()) > 0:
            check_signal(signal)
            if not self._listening:
                if left * 1000 < _WORTH_BLOCKING_MS:
                    break
                connection.send_command("BLPOP", self._wake, self._blpop_seconds(left * 1000))
                self._listening = True
            if connection.can_read(left if signal is None else min(left, SLICE_MS / 1000)):
                self._listening = False
                if connection.read_response(disable_decoding=True) is not None:
                    return True
        return False

    def _blpop_seconds(self, ms: float) -> str:
        assert self._pool is not None
        return _blpop_seconds(min(ms, _patience_ms(self._pool)))

    def _connect(self) -> Connection | None:
        if self._connection is None:
            pool = self._find_pool()
            if pool is not None and self._listeners.admit(pool):
                try:
                    self._connection = take(pool)
                    self._pool = pool
                finally:
                    if self._connection is None:
                        self._listeners.leave()
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._listening:
            self._listening = False
            connection.disconnect()
        self._listeners.leave()
        assert self._pool is not None
        self._pool.release(connection)


class AsyncRedisWaiter:
    """One asyncio waiter."""

    def __init__(
        self,
        backend: AsyncRedisBackend,
        listeners: Listeners,
        pool: Callable[[], AsyncPool | None],
        key: str,
        wake: str,
    ) -> None:
        self._backend = backend
        self._listeners = listeners
        self._find_pool = pool
        self._key = key
        self._wake = wake
        self._pool: AsyncPool | None = None
        self._connection: AsyncConnection | None = None
        self._listener: asyncio.Task[object] | None = None
        self._woken = False

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        answer = await self._backend._attempt(self._key, ttl_ms, holder, wait_ms)
        self._woken = False
        return answer

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        try:
            self._woken = ms >= _WORTH_BLOCKING_MS and await self._listen(deadline, signal)
        except _FAULTS:
            await self._hang_up()
        if self._woken:
            return True
        await sleep_async(max(0.0, deadline - time.monotonic()) * 1000, signal)
        return False

    async def close(self) -> None:
        must_pass_on = self._listener is not None or self._woken
        await self._hang_up()
        if must_pass_on:
            with contextlib.suppress(Exception):
                await self._backend._pass_on(self._key)

    async def _listen(self, deadline: float, signal: Signal | None) -> bool:
        connection = await self._connect()
        if connection is None:
            return False
        assert self._pool is not None
        while (left := deadline - time.monotonic()) > 0:
            check_signal(signal)
            if self._listener is None:
                if left * 1000 < _WORTH_BLOCKING_MS:
                    break
                seconds = _blpop_seconds(min(left * 1000, _patience_ms(self._pool)))
                await connection.send_command("BLPOP", self._wake, seconds)
                reading = connection.read_response(disable_decoding=True, timeout=_UNREACHED_S)
                self._listener = asyncio.ensure_future(reading)
            slice_s = left if signal is None else min(left, SLICE_MS / 1000)
            done, _ = await asyncio.wait({self._listener}, timeout=slice_s)
            if done:
                listener, self._listener = self._listener, None
                if listener.result() is not None:
                    return True
        return False

    async def _connect(self) -> AsyncConnection | None:
        if self._connection is None:
            pool = self._find_pool()
            if pool is not None and self._listeners.admit(pool):
                try:
                    self._connection = await take_async(pool)
                    self._pool = pool
                finally:
                    if self._connection is None:
                        self._listeners.leave()
        return self._connection

    async def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        connection, self._connection = self._connection, None
        if listener is not None:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await listener
        if connection is not None:
            if listener is not None:
                await connection.disconnect(nowait=True)
            self._listeners.leave()
            assert self._pool is not None
            await self._pool.release(connection)
