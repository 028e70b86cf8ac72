"""Waits on a wake-up list, for asyncio. ``waiter`` describes how it works."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, Protocol

from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.background_tasks import keep
from syncguard._lock.handles import AsyncAcquired
from syncguard._lock.sleeping_waiter import SLICE_MS, sleep_async
from syncguard.redis._transport.connections import (
    AsyncConnection,
    AsyncPool,
    private_async_connection,
    take_async,
)
from syncguard.redis.script_calls import Call
from syncguard.redis.waiter import (
    FAULTS,
    MIN_BLPOP_WAIT_MS,
    PASS_ON_S,
    Listeners,
    blpop_seconds,
    longest_wait_ms,
)
from syncguard.types import Signal

_NO_READ_TIMEOUT_S: Final = 3600.0
"""Longer than any BLPOP: the server ends the BLPOP, or we close the connection, not redis-py."""


class AsyncAttempts(Protocol):
    """The part of an asyncio Redis backend that a waiter needs."""

    async def attempt(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal: ...

    def pass_on_call(self, key: str) -> Call[bool]: ...


class AsyncRedisWaiter:
    """One asyncio waiter."""

    def __init__(
        self,
        backend: AsyncAttempts,
        pool: Callable[[], AsyncPool | None],
        key: str,
        wake: str,
    ) -> None:
        self._backend = backend
        self._find_pool = pool
        self._key = key
        self._wake = wake
        self._pool: AsyncPool | None = None
        self._connection: AsyncConnection | None = None
        self._listener: asyncio.Task[object] | None = None
        self._woken = False
        self._acquired = False

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        answer = await self._backend.attempt(self._key, ttl_ms, holder, wait_ms)
        self._woken = False
        self._acquired = not isinstance(answer, Refusal)
        return answer

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        try:
            self._woken = ms >= MIN_BLPOP_WAIT_MS and await self._listen(deadline, signal)
        except FAULTS:
            await self._disconnect()
        if self._woken:
            return True
        await sleep_async(max(0.0, deadline - time.monotonic()) * 1000, signal)
        return False

    async def close(self) -> None:
        must_pass_on = (self._listener is not None or self._woken) and not self._acquired
        pool = self._pool
        await self._disconnect()
        if must_pass_on and pool is not None:
            # Not awaited: a waiter that gives up because the server hangs must not wait for it.
            keep(asyncio.ensure_future(_pass_on(self._backend.pass_on_call(self._key), pool)))

    async def _listen(self, deadline: float, signal: Signal | None) -> bool:
        connection = await self._connect()
        if connection is None:
            return False
        assert self._pool is not None
        while (left := deadline - time.monotonic()) > 0:
            check_signal(signal)
            if self._listener is None:
                if left * 1000 < MIN_BLPOP_WAIT_MS:
                    break
                seconds = blpop_seconds(min(left * 1000, longest_wait_ms(self._pool)))
                await connection.send_command("BLPOP", self._wake, seconds)
                reading = connection.read_response(
                    disable_decoding=True, timeout=_NO_READ_TIMEOUT_S
                )
                self._listener = asyncio.ensure_future(reading)
            slice_s = left if signal is None else min(left, SLICE_MS / 1000)
            done, _ = await asyncio.wait({self._listener}, timeout=slice_s)
            if done:
                popped = self._listener.result()
                # Reset only now: if result() raises, the connection must be closed, not reused.
                self._listener = None
                if popped is not None:
                    return True
        return False

    async def _connect(self) -> AsyncConnection | None:
        if self._connection is None:
            pool = self._find_pool()
            if pool is not None and Listeners.on(pool).admit(self, pool):
                try:
                    self._connection = await take_async(pool)
                    self._pool = pool
                finally:
                    if self._connection is None:
                        Listeners.on(pool).leave(self)
        return self._connection

    async def _disconnect(self) -> None:
        listener, self._listener = self._listener, None
        connection, self._connection = self._connection, None
        if listener is not None:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await listener
        if connection is not None:
            if listener is not None:
                await connection.disconnect(nowait=True)
            assert self._pool is not None
            Listeners.on(self._pool).leave(self)
            await self._pool.release(connection)


async def _pass_on(call: Call[bool], pool: AsyncPool) -> None:
    """Run ``wake_next_waiter.lua`` once on a separate connection, with a short timeout."""
    connection = private_async_connection(pool, PASS_ON_S)
    with contextlib.suppress(*FAULTS):
        try:
            await connection.send_command(
                "EVAL", call.script.text, str(len(call.keys)), *call.keys, *call.args
            )
            await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)
