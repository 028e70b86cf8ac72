"""Auto-extend for asyncio: one task per event loop, over the same schedule as the thread's.

Each backend is extended by a short-lived task of its own, so that one dead server delays neither
the others nor the news.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Final

from syncguard._backend.optional import AsyncExtendChannel, AsyncOpensExtendChannel
from syncguard._backend.required import AsyncLockBackend
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError
from syncguard.extending import AsyncCallingChannel
from syncguard.held import Held
from syncguard.lanes import IDLE_MS, Complaint, connect_timeout_ms, patience_ms, still_held
from syncguard.losing import announce_async
from syncguard.schedule import Beat, Schedule


class AsyncLane:
    """One backend's way: its connection, what waits for it, and the task that is extending."""

    def __init__(self, backend: AsyncLockBackend, heartbeat: AsyncHeartbeat) -> None:
        self.backend = backend
        self.heartbeat = heartbeat
        self.channel: AsyncExtendChannel | None = None
        self.waiting: list[Beat[AsyncLane]] = []
        self.task: asyncio.Task[None] | None = None
        self.watched = 0
        self.complaint = Complaint(backend)
        self.used_at_ms = holder_clock_ms()

    @property
    def idle(self) -> bool:
        unused_ms = holder_clock_ms() - self.used_at_ms
        return self.watched == 0 and self.task is None and unused_ms > IDLE_MS

    async def open(self, timeout_ms: float) -> AsyncExtendChannel:
        channel: AsyncExtendChannel | None = None
        if isinstance(self.backend, AsyncOpensExtendChannel):
            channel = await self.backend.open_extend_channel(timeout_ms)
        return AsyncCallingChannel(self.backend) if channel is None else channel

    async def hang_up(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            with contextlib.suppress(Exception):
                await channel.close()


class AsyncHeartbeat:
    """The scheduler of one event loop."""

    def __init__(self) -> None:
        self._schedule: Schedule[AsyncLane] = Schedule()
        self._lanes: dict[int, AsyncLane] = {}
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(
        self,
        held: Held,
        backend: AsyncLockBackend,
        ttl_ms: int,
        *,
        renews: bool,
        max_hold_ms: int | None,
    ) -> Beat[AsyncLane]:
        lane = self._lanes.get(id(backend))
        if lane is None:
            lane = self._lanes[id(backend)] = AsyncLane(backend, self)
        lane.watched += 1
        lane.used_at_ms = holder_clock_ms()
        sent_at_ms = held.deadline_ms - ttl_ms
        beat = Beat(held, lane, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms)
        self._schedule.add(beat)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        self._bell.set()
        return beat

    def unwatch(self, beat: Beat[AsyncLane]) -> None:
        if not beat.over:
            beat.over = True
            beat.lane.watched -= 1

    async def _run(self) -> None:
        try:
            while await self._has_work():
                self._beat()
                await self._sleep()
        finally:
            for lane in self._lanes.values():
                if lane.task is not None:
                    lane.task.cancel()
                await lane.hang_up()
            # The loop refers to this task and this to the loop: let go, or neither ever goes.
            self._task = None
            _heartbeats.pop(asyncio.get_running_loop(), None)

    async def _has_work(self) -> bool:
        for key in [key for key, lane in self._lanes.items() if lane.idle]:
            await self._lanes.pop(key).hang_up()
        return bool(self._lanes)

    def _beat(self) -> None:
        lost, due = self._schedule.take_due(holder_clock_ms())
        for beat in due:
            beat.lane.waiting.append(beat)
        for beat in lost:
            beat.lane.watched -= 1
            announce_async(beat.held)
        for lane in self._lanes.values():
            for beat in lane.waiting:
                beat.sending = not beat.over  # nobody need wait for what will not be sent
            lane.waiting = [beat for beat in lane.waiting if beat.sending]
            if lane.waiting and lane.task is None:
                lane.task = asyncio.ensure_future(self._extend(lane))

    async def _sleep(self) -> None:
        next_ms = self._schedule.next_ms()
        now_ms = holder_clock_ms()
        timeout_s = (IDLE_MS if next_ms is None else max(0.0, next_ms - now_ms)) / 1000
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._bell.wait(), timeout_s)
        self._bell.clear()

    async def _extend(self, lane: AsyncLane) -> None:
        beats, lane.waiting = lane.waiting, []
        try:
            if lane.channel is None:
                timeout_ms = connect_timeout_ms(beats)
                lane.channel = await asyncio.wait_for(lane.open(timeout_ms), timeout_ms / 1000)
            sent_at_ms = lane.used_at_ms = holder_clock_ms()
            answers = await asyncio.wait_for(
                lane.channel.extend([(beat.held.lock_id, beat.ttl_ms) for beat in beats]),
                patience_ms(beats) / 1000,
            )
        except Exception as error:
            too_late = isinstance(error, asyncio.TimeoutError)
            lane.complaint.make(LockError("NetworkTimeout") if too_late else error)
            for beat in beats:
                self._schedule.failed(beat, holder_clock_ms())
            await lane.hang_up()
        else:
            for beat, answer in zip(beats, answers, strict=True):
                known = still_held(answer, beat, sent_at_ms, self._schedule, lane.complaint)
                if not known and not beat.over:
                    self.unwatch(beat)
                    announce_async(beat.held)
        finally:
            lane.task = None
            self._bell.set()


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
) -> Beat[AsyncLane]:
    """Extend a lock until ``unwatch``; ``renews=False`` only tells when it is lost."""
    loop = asyncio.get_running_loop()
    heartbeat = _heartbeats.get(loop)
    if heartbeat is None:
        heartbeat = _heartbeats[loop] = AsyncHeartbeat()
    return heartbeat.watch(held, backend, ttl_ms, renews=renews, max_hold_ms=max_hold_ms)


def unwatch(beat: Beat[AsyncLane]) -> None:
    """Stop extending. An extension that is under way never resurrects a lock."""
    beat.lane.heartbeat.unwatch(beat)


async def settle(beat: Beat[AsyncLane]) -> None:
    """Wait, after ``unwatch``, until no extension is under way: it would undo a later one."""
    until_ms = holder_clock_ms() + patience_ms([beat])
    while beat.sending and holder_clock_ms() < until_ms:  # noqa: ASYNC110 - rare, and short
        await asyncio.sleep(0.001)
