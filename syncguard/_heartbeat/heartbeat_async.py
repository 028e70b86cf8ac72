"""Auto-extend for asyncio: one timer per event loop, with the same ``Schedule`` as the thread.

A timer and not a task: whoever cancels all tasks of a loop, as a shutdown does, does not stop it.
Only the requests run in tasks, one for each backend while it extends. So one dead server delays
neither the other backends nor ``on_lost``, and a cancelled request is retried.

Timer and tasks run in an empty context: they must not keep the context of the first caller alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncGenerator, Coroutine, Hashable
from contextvars import Context
from typing import Any, Final

from syncguard._backend.optional import (
    AsyncExtendChannel,
    AsyncOpensExtendChannel,
    AsyncSpreadsLocks,
    LockMoved,
)
from syncguard._backend.required import AsyncLockBackend
from syncguard._heartbeat.backend_connection import (
    IDLE_MS,
    FailureLog,
    answer_timeout_ms,
    connect_timeout_ms,
    server_of,
    still_held,
)
from syncguard._heartbeat.fallback_channel import AsyncFallbackChannel, AsyncOneRequestChannel
from syncguard._heartbeat.on_lost import announce_soon
from syncguard._heartbeat.schedule import Beat, Schedule
from syncguard._lock.background_tasks import keep
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError, RateLimited

_logger = logging.getLogger("syncguard")

_NEVER: Final = float("inf")
_PAUSE_AFTER_ERROR_MS: Final = 50.0


class AsyncWatch:
    """A holder's reference to a beat. Dropping it, or setting ``over``, stops the extensions."""

    __slots__ = ("__weakref__", "beat")

    def __init__(self, beat: Beat[AsyncBackendConnection]) -> None:
        self.beat = beat
        beat.owner = weakref.ref(self)


class AsyncBackendConnection:
    """One backend, or one of its servers: its connection, the beats to send, and the task that
    extends."""

    def __init__(self, backend: AsyncLockBackend, server: Hashable | None = None) -> None:
        self.backend = backend
        self.server = server
        self.channel: AsyncExtendChannel | None = None
        self.waiting: list[Beat[AsyncBackendConnection]] = []
        self.in_flight: list[Beat[AsyncBackendConnection]] = []
        self.sent_at_ms: float | None = None
        """When the beats in flight were sent; None: not yet."""
        self.task: asyncio.Task[None] | None = None
        self.is_stalled = False
        """Whether the task was cancelled because its answer took too long."""
        self.is_watched = True
        self.failure_log = FailureLog(backend)
        self.used_at_ms = holder_clock_ms()

    @property
    def idle(self) -> bool:
        unused_ms = holder_clock_ms() - self.used_at_ms
        return not self.is_watched and self.task is None and unused_ms > IDLE_MS

    def stalls_at_ms(self) -> float:
        """When the missing answer will have taken too long, also for the beats that wait for it."""
        # Nothing in flight: the answer has arrived, and the task is about to end.
        if self.sent_at_ms is None or self.is_stalled or not self.in_flight:
            return _NEVER
        return self.sent_at_ms + answer_timeout_ms([*self.in_flight, *self.waiting])

    async def connect(self, timeout_ms: float) -> None:
        # Not returned: a cancelled ``wait_for`` would drop the result, and nobody would close it.
        self.channel = await self._open(timeout_ms)

    async def _open(self, timeout_ms: float) -> AsyncExtendChannel:
        channel: AsyncExtendChannel | None = None
        try:
            if self.server is not None and isinstance(self.backend, AsyncSpreadsLocks):
                channel = await self.backend.open_server_channel(self.server, timeout_ms)
            elif isinstance(self.backend, AsyncOpensExtendChannel):
                channel = await self.backend.open_extend_channel(timeout_ms)
        except RateLimited:
            return AsyncOneRequestChannel(self.backend)
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
        self._connections: dict[tuple[int, Hashable | None], AsyncBackendConnection] = {}
        """By the backend, and its server if it has several."""
        self._context = Context()
        self._ticks_at_ms = _NEVER
        self._dropped_idle_at_ms = holder_clock_ms()
        self._end_of_loop = self._close_at_end_of_loop()
        # Start the generator: now the loop knows it. It runs to its first ``yield`` at once.
        with contextlib.suppress(StopIteration):
            self._end_of_loop.__anext__().send(None)

    def watch(
        self,
        held: Held,
        backend: AsyncLockBackend,
        ttl_ms: int,
        *,
        renews: bool,
        max_hold_ms: int | None,
    ) -> AsyncWatch:
        connection = self._connection_of(backend, server_of(backend, held.lock_id))
        now_ms = holder_clock_ms()
        sent_at_ms = held.deadline_ms - ttl_ms
        beat = Beat(held, connection, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms)
        watched = AsyncWatch(beat)
        self._schedule.add(beat)
        self._tick_by(beat.when_ms, now_ms)
        return watched

    def _connection_of(
        self, backend: AsyncLockBackend, server: Hashable | None
    ) -> AsyncBackendConnection:
        key = (id(backend), server)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = AsyncBackendConnection(backend, server)
        connection.is_watched = True
        connection.used_at_ms = holder_clock_ms()
        return connection

    # -- the timer ----------------------------------------------------------------------------

    def _tick_by(self, when_ms: float, now_ms: float) -> None:
        """Call ``_tick`` at this time, or earlier."""
        # No longer than this: to close idle connections, and to notice a suspended machine, which
        # the clock of the loop does not.
        when_ms = min(when_ms, now_ms + IDLE_MS)
        if when_ms < self._ticks_at_ms:
            self._ticks_at_ms = when_ms
            delay_s = max(0.0, when_ms - now_ms) / 1000
            # The handle is not kept: it would keep the loop alive.
            asyncio.get_running_loop().call_later(
                delay_s, self._tick, when_ms, context=self._context
            )

    def _tick(self, when_ms: float) -> None:
        if when_ms != self._ticks_at_ms:
            return  # an earlier one took its place
        self._ticks_at_ms = _NEVER
        pause_ms = 0.0
        try:
            self._beat()
        except Exception:
            # The other locks of this loop must be extended.
            _logger.exception("Unexpected error in the heartbeat of an event loop; continuing.")
            pause_ms = _PAUSE_AFTER_ERROR_MS
        if not self._connections:
            self._retire()
            return
        now_ms = holder_clock_ms()
        wakes = [connection.stalls_at_ms() for connection in self._connections.values()]
        next_ms = self._schedule.next_ms()
        if next_ms is not None:
            wakes.append(next_ms)
        self._tick_by(max(min(wakes), now_ms + pause_ms), now_ms)

    def _beat(self) -> None:
        lost, due = self._schedule.take_due(holder_clock_ms())
        for beat in due:
            if beat.is_active:
                self._find_server(beat)
                beat.connection.waiting.append(beat)
        for beat in lost:
            if beat.has_owner:
                announce_soon(beat.held)
        for connection in list(self._connections.values()):
            self._send_waiting(connection)
        self._drop_idle()

    def _find_server(self, beat: Beat[AsyncBackendConnection]) -> None:
        """Another server may have the lock by now."""
        backend = beat.connection.backend
        server = server_of(backend, beat.held.lock_id)
        if server != beat.connection.server:
            beat.connection = self._connection_of(backend, server)

    def _drop_idle(self) -> None:
        """From time to time, drop the beats of ended blocks: ``unwatch`` only sets a flag."""
        now_ms = holder_clock_ms()
        if now_ms - self._dropped_idle_at_ms >= IDLE_MS:
            self._dropped_idle_at_ms = now_ms
            watched = {id(beat.connection) for beat in self._schedule.beats() if beat.is_active}
            for connection in self._connections.values():
                connection.is_watched = id(connection) in watched
        for key in [key for key, connection in self._connections.items() if connection.idle]:
            self._start(self._connections.pop(key).disconnect())

    def _retire(self) -> None:
        """Nothing is left to do. The next lock makes another one of these."""
        self._forget()
        self._start(self._end_of_loop.aclose())

    def _forget(self) -> None:
        loop = asyncio.get_running_loop()
        if _heartbeats.get(loop) is self:
            del _heartbeats[loop]

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the empty context."""
        task: asyncio.Task[None] = Context().run(asyncio.get_running_loop().create_task, work)
        keep(task)
        return task

    async def _close_at_end_of_loop(self) -> AsyncGenerator[None, None]:
        """Close the connections when the loop shuts down.

        A generator, because loops close those that are open: that is the only hook they have.
        """
        try:
            yield
        finally:
            self._forget()
            connections = list(self._connections.values())
            tasks = [connection.task for connection in connections if connection.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for connection in connections:
                await connection.disconnect()

    # -- the requests -------------------------------------------------------------------------

    def _send_waiting(self, connection: AsyncBackendConnection) -> None:
        """Start a task for the waiting beats, or end the one that takes too long."""
        for beat in connection.waiting:
            beat.sending = not beat.over  # not sent if over: ``settle`` need not wait
        connection.waiting = [beat for beat in connection.waiting if beat.sending]
        if connection.task is not None:
            if not connection.is_stalled and connection.stalls_at_ms() <= holder_clock_ms():
                connection.is_stalled = True
                connection.task.cancel()
        elif connection.waiting:
            connection.in_flight, connection.waiting = connection.waiting, []
            connection.task = self._start(self._extend(connection))
            connection.task.add_done_callback(
                lambda task: self._extended(connection, task), context=self._context
            )

    async def _extend(self, connection: AsyncBackendConnection) -> None:
        beats = connection.in_flight
        try:
            if connection.channel is None:
                timeout_ms = connect_timeout_ms(beats)
                await asyncio.wait_for(connection.connect(timeout_ms), timeout_ms / 1000)
            assert connection.channel is not None
            now_ms = connection.sent_at_ms = connection.used_at_ms = holder_clock_ms()
            self._tick_by(connection.stalls_at_ms(), now_ms)
            answers = await connection.channel.extend(
                [(beat.held.lock_id, beat.ttl_ms) for beat in beats]
            )
        except BaseException as error:
            # If it is not stalled, then somebody cancelled it with all tasks of the loop.
            if connection.is_stalled or isinstance(error, asyncio.TimeoutError):
                connection.failure_log.report(LockError("NetworkTimeout"))
            elif isinstance(error, Exception):
                connection.failure_log.report(error)
            await connection.disconnect()
            if not isinstance(error, Exception):
                raise
        else:
            connection.in_flight = []
            for beat, answer in zip(beats, answers, strict=True):
                if isinstance(answer, LockMoved) and connection.server is not None:
                    # Once by ``extend``. The next time its server may be known.
                    beat.connection = self._connection_of(connection.backend, None)
                    beat.connection.waiting.append(beat)
                    continue
                known = still_held(answer, beat, now_ms, self._schedule, connection.failure_log)
                if not known and beat.is_active:
                    beat.over = True
                    announce_soon(beat.held)
            if isinstance(connection.channel, AsyncOneRequestChannel):
                await connection.disconnect()

    def _extended(self, connection: AsyncBackendConnection, task: asyncio.Task[None]) -> None:
        """The task has ended. Reschedule the beats that got no answer."""
        if not task.cancelled():
            task.exception()  # marks it as retrieved
        unanswered, connection.in_flight = connection.in_flight, []
        connection.task = connection.sent_at_ms = None
        connection.is_stalled = False
        now_ms = holder_clock_ms()
        for beat in unanswered:
            self._schedule.failed(beat, now_ms)
        self._tick_by(now_ms, now_ms)


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
) -> AsyncWatch:
    """Extend a lock until ``unwatch``; ``renews=False`` only detects that it is lost.

    Extending also stops when the returned object is garbage-collected: a block may be dropped and
    never left.
    """
    loop = asyncio.get_running_loop()
    heartbeat = _heartbeats.get(loop)
    if heartbeat is None:
        heartbeat = _heartbeats[loop] = AsyncHeartbeat()
    return heartbeat.watch(held, backend, ttl_ms, renews=renews, max_hold_ms=max_hold_ms)


def unwatch(watched: AsyncWatch) -> None:
    """Stop extending. A request that was sent already cannot bring a released lock back."""
    watched.beat.over = True


async def settle(watched: AsyncWatch) -> None:
    """After ``unwatch``: wait for a sent extension, which would overwrite the next TTL."""
    beat = watched.beat
    if beat in beat.connection.waiting:  # it is over, and will not be sent
        return
    until_ms = holder_clock_ms() + answer_timeout_ms([beat])
    while beat.sending and holder_clock_ms() < until_ms:  # noqa: ASYNC110 - rare, and short
        await asyncio.sleep(0.001)
