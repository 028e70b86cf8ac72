"""Auto-extend for asyncio: one task per event loop, with the same ``Schedule`` as the thread.

The locks of each backend are extended by a separate short-lived task, so that one dead server
delays neither the other backends nor ``on_lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Final

from syncguard._backend.optional import AsyncExtendChannel, AsyncOpensExtendChannel
from syncguard._backend.required import AsyncLockBackend
from syncguard._heartbeat.backend_connection import (
    IDLE_MS,
    FailureLog,
    answer_timeout_ms,
    connect_timeout_ms,
    still_held,
)
from syncguard._heartbeat.fallback_channel import AsyncFallbackChannel
from syncguard._heartbeat.on_lost import announce_async
from syncguard._heartbeat.schedule import Beat, Schedule
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError


class AsyncBackendConnection:
    """One backend: its connection, the beats to send, and the task that extends."""

    def __init__(self, backend: AsyncLockBackend, heartbeat: AsyncHeartbeat) -> None:
        self.backend = backend
        self.heartbeat = heartbeat
        self.channel: AsyncExtendChannel | None = None
        self.waiting: list[Beat[AsyncBackendConnection]] = []
        self.task: asyncio.Task[None] | None = None
        self.watched = 0
        self.failure_log = FailureLog(backend)
        self.used_at_ms = holder_clock_ms()

    @property
    def idle(self) -> bool:
        unused_ms = holder_clock_ms() - self.used_at_ms
        return self.watched == 0 and self.task is None and unused_ms > IDLE_MS

    async def open(self, timeout_ms: float) -> AsyncExtendChannel:
        channel: AsyncExtendChannel | None = None
        if isinstance(self.backend, AsyncOpensExtendChannel):
            channel = await self.backend.open_extend_channel(timeout_ms)
        return AsyncFallbackChannel(self.backend) if channel is None else channel

    async def disconnect(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            with contextlib.suppress(Exception):
                await channel.close()


class AsyncHeartbeat:
    """The scheduler of one event loop."""

    def __init__(self) -> None:
        self._schedule: Schedule[AsyncBackendConnection] = Schedule()
        self._connections: dict[int, AsyncBackendConnection] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(
        self,
        held: Held,
        backend: AsyncLockBackend,
        ttl_ms: int,
        *,
        renews: bool,
        max_hold_ms: int | None,
    ) -> Beat[AsyncBackendConnection]:
        connection = self._connections.get(id(backend))
        if connection is None:
            connection = self._connections[id(backend)] = AsyncBackendConnection(backend, self)
        connection.watched += 1
        connection.used_at_ms = holder_clock_ms()
        sent_at_ms = held.deadline_ms - ttl_ms
        beat = Beat(held, connection, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms)
        self._schedule.add(beat)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        self._wake.set()
        return beat

    def unwatch(self, beat: Beat[AsyncBackendConnection]) -> None:
        if not beat.over:
            beat.over = True
            beat.connection.watched -= 1

    async def _run(self) -> None:
        try:
            while await self._has_work():
                self._beat()
                await self._sleep()
        finally:
            for connection in self._connections.values():
                if connection.task is not None:
                    connection.task.cancel()
                await connection.disconnect()
            # Break the reference cycle between the loop and this task.
            self._task = None
            _heartbeats.pop(asyncio.get_running_loop(), None)

    async def _has_work(self) -> bool:
        for key in [key for key, connection in self._connections.items() if connection.idle]:
            await self._connections.pop(key).disconnect()
        return bool(self._connections)

    def _beat(self) -> None:
        lost, due = self._schedule.take_due(holder_clock_ms())
        for beat in due:
            beat.connection.waiting.append(beat)
        for beat in lost:
            beat.connection.watched -= 1
            announce_async(beat.held)
        for connection in self._connections.values():
            for beat in connection.waiting:
                beat.sending = not beat.over  # not sent if over: ``settle`` need not wait
            connection.waiting = [beat for beat in connection.waiting if beat.sending]
            if connection.waiting and connection.task is None:
                connection.task = asyncio.ensure_future(self._extend(connection))

    async def _sleep(self) -> None:
        next_ms = self._schedule.next_ms()
        now_ms = holder_clock_ms()
        timeout_s = (IDLE_MS if next_ms is None else max(0.0, next_ms - now_ms)) / 1000
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        self._wake.clear()

    async def _extend(self, connection: AsyncBackendConnection) -> None:
        beats, connection.waiting = connection.waiting, []
        try:
            if connection.channel is None:
                timeout_ms = connect_timeout_ms(beats)
                connection.channel = await asyncio.wait_for(
                    connection.open(timeout_ms), timeout_ms / 1000
                )
            sent_at_ms = connection.used_at_ms = holder_clock_ms()
            answers = await asyncio.wait_for(
                connection.channel.extend([(beat.held.lock_id, beat.ttl_ms) for beat in beats]),
                answer_timeout_ms(beats) / 1000,
            )
        except Exception as error:
            too_late = isinstance(error, asyncio.TimeoutError)
            connection.failure_log.report(LockError("NetworkTimeout") if too_late else error)
            for beat in beats:
                self._schedule.failed(beat, holder_clock_ms())
            await connection.disconnect()
        else:
            for beat, answer in zip(beats, answers, strict=True):
                known = still_held(answer, beat, sent_at_ms, self._schedule, connection.failure_log)
                if not known and not beat.over:
                    self.unwatch(beat)
                    announce_async(beat.held)
        finally:
            connection.task = None
            self._wake.set()


_heartbeats: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncHeartbeat]] = (
    weakref.WeakKeyDictionary()
)


def watch(
    held: Held,
    backend: AsyncLockBackend,
    ttl_ms: int,
    *,
    renews: bool = True,
    max_hold_ms: int | None = None,
) -> Beat[AsyncBackendConnection]:
    """Extend a lock until ``unwatch``; ``renews=False`` only detects that it is lost."""
    loop = asyncio.get_running_loop()
    heartbeat = _heartbeats.get(loop)
    if heartbeat is None:
        heartbeat = _heartbeats[loop] = AsyncHeartbeat()
    return heartbeat.watch(held, backend, ttl_ms, renews=renews, max_hold_ms=max_hold_ms)


def unwatch(beat: Beat[AsyncBackendConnection]) -> None:
    """Stop extending. A request that was sent already cannot bring a released lock back."""
    beat.connection.heartbeat.unwatch(beat)


async def settle(beat: Beat[AsyncBackendConnection]) -> None:
    """After ``unwatch``: wait for a sent extension, which would overwrite the next TTL."""
    until_ms = holder_clock_ms() + answer_timeout_ms([beat])
    while beat.sending and holder_clock_ms() < until_ms:  # noqa: ASYNC110 - rare, and short
        await asyncio.sleep(0.001)
