"""One connection for all asyncio waiters of an event loop and server. On a cluster: of a bucket.

``wake_listener`` describes the bell and passing on. Here a task sends the BLPOP and reads its
reply, as long as there are waiters. Each loop has its own listener: a connection belongs to one
loop, and to reach a waiter of another one costs more than a second connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
import weakref
from collections.abc import Iterable
from typing import Final

import redis

from syncguard._backend.required import check_signal
from syncguard._lock.background_tasks import keep
from syncguard._lock.sleeping_waiter import SLICE_MS
from syncguard.redis._transport.closed_connection import closed_is_a_fault
from syncguard.redis._transport.connections import (
    LARGE_POOL,
    AsyncConnection,
    AsyncPool,
    private_async_connection,
    shared,
    take_async,
)
from syncguard.redis._transport.request_packing import pack
from syncguard.redis.local_waiters import CLUSTER_LIMIT, MAX_LISTS, LocalWaiters, WakeList
from syncguard.redis.names import Space
from syncguard.redis.wake_listener import (
    FAULTS,
    PASS_ON_S,
    PAUSE_AFTER_FAULT_S,
    blpop_command,
    blpop_ms,
    eval_command,
    new_bell,
    overdue_at,
)
from syncguard.types import Signal

_CANCEL_AGAIN_S: Final = 0.02

_Listeners = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, "dict[str, AsyncWakeListener]"]


async def pass_on(lists: Iterable[WakeList], pool: AsyncPool) -> None:
    """Run ``pass_on_wake_up.lua`` for each lock on a separate connection, with a short timeout."""
    connection = private_async_connection(pool, PASS_ON_S)
    with contextlib.suppress(*FAULTS):
        try:
            for wake_list in lists:
                await connection.send_packed_command([pack(eval_command(wake_list.pass_on))])
                await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)


class AsyncPlace:
    """The place of one waiter among those of its loop."""

    __slots__ = ("_called", "is_listed", "is_woken", "waits_now", "wake_list")

    def __init__(self, wake_list: WakeList) -> None:
        self.wake_list = wake_list
        self.waits_now = False
        self.is_listed = False
        """Added to the waiters, and no wake-up was used since then."""
        self.is_woken = False
        self._called: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self.is_woken = True
        if self._called is not None and not self._called.done():
            self._called.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Sleep until woken."""
        self._called = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._called}, timeout=seconds)

    def use_wake_up(self) -> None:
        """An attempt follows: another wake-up needs another ``join``."""
        self.is_woken = self.is_listed = False


class AsyncWakeListener:
    """The waiters of a loop, and the task that listens for them."""

    def __init__(self, pool: AsyncPool, space: Space, *, is_limited: bool) -> None:
        self.bell = new_bell(space)
        self.pool = pool
        self.is_limited = is_limited
        self.waiters: LocalWaiters[AsyncPlace] = LocalWaiters()
        self.owed: dict[str, WakeList] = {}
        """Wake-ups that were consumed, perhaps, and must be passed on."""
        self._listening: _Listening | None = None
        self._faulty_until = 0.0

    @classmethod
    def on(cls, pool: AsyncPool, space: Space, *, clustered: bool) -> AsyncWakeListener | None:
        """The listener of all backends on this pool. None: the pool is too small for one."""
        if pool.max_connections < LARGE_POOL:
            return None
        loops: _Listeners = shared(pool, "listeners", weakref.WeakKeyDictionary)
        listeners = loops.setdefault(asyncio.get_running_loop(), {})
        name = space.prefix if clustered else ""
        known = listeners.get(name)
        if known is None:
            known = listeners[name] = cls(pool, space, is_limited=clustered)
        return known

    def join(self, place: AsyncPlace) -> bool:
        """Add a waiter. True: the bell must be rung, because the BLPOP has not the new list."""
        place.is_listed = True
        self.waiters.add(place)
        if self._listening is None:
            self._start()
            return False
        pending = self._listening.pending
        return place.wake_list not in pending and 0 < len(pending) < MAX_LISTS

    async def wait(self, place: AsyncPlace, deadline: float, signal: Signal | None) -> bool:
        """Wait for a wake-up until the deadline. Returns whether there was one."""
        place.waits_now = True
        try:
            while not place.is_woken:
                check_signal(signal)
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                await place.sleep(left if signal is None else min(left, SLICE_MS / 1000))
            return True
        finally:
            place.waits_now = False

    async def leave(self, place: AsyncPlace, *, has_wake_up: bool, acquired: bool) -> None:
        """End waiting. ``has_wake_up``: a wake-up reached this waiter, and no attempt followed."""
        lost: dict[str, WakeList] = {}
        was_removed = self.waiters.remove(place)
        if has_wake_up or (place.is_listed and not was_removed):
            lost[place.wake_list] = place.wake_list
        if not self.waiters:
            listening, self._listening = self._listening, None
            if listening is not None:
                await listening.stop()
            lost.update(self.owed)
            self.owed = {}
        if acquired:  # wakes the next waiter when it releases
            lost.pop(place.wake_list, None)
        if lost:
            # Not awaited: a waiter that gives up because the server hangs must not wait for it.
            keep(asyncio.ensure_future(pass_on(lost.values(), self.pool)))

    def _start(self) -> None:
        if self._listening is None and self.waiters and time.monotonic() >= self._faulty_until:
            self._listening = _Listening(self)

    def pause(self) -> None:
        """After a fault: the waiters sleep, and the next attempt reports the error."""
        self._faulty_until = time.monotonic() + PAUSE_AFTER_FAULT_S
        asyncio.get_running_loop().call_later(PAUSE_AFTER_FAULT_S * 1.01, self._start)

    def has_ended(self, listening: _Listening, *, is_cancelled: bool) -> None:
        if self._listening is listening:
            self._listening = None
        if not is_cancelled:
            self._start()  # a waiter may have come while the task ended


class _Listening:
    """One task, from the first waiter to the last."""

    def __init__(self, listener: AsyncWakeListener) -> None:
        self.pending: dict[str, WakeList] = {}
        """The lists of the BLPOP that was sent and not answered."""
        self._listener = listener
        self._is_stopped = False
        # In an empty context: the task must not keep the variables of the first caller.
        self._task = contextvars.Context().run(asyncio.ensure_future, self._run())

    async def stop(self) -> None:
        self._is_stopped = True
        # More than once: redis-py sends under asyncio.wait_for, which in Python 3.10 and 3.11
        # ignores a cancellation that arrives when the command has just been sent.
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CANCEL_AGAIN_S)

    async def _run(self) -> None:
        listener, is_cancelled = self._listener, True
        try:
            if listener.is_limited and not CLUSTER_LIMIT.admit(self):
                listener.pause()  # too many buckets have waiters
            else:
                with closed_is_a_fault():
                    await self._listen_on(await take_async(listener.pool))
            is_cancelled = False
        except FAULTS:
            listener.pause()
            is_cancelled = False
        finally:
            CLUSTER_LIMIT.leave(self)
            listener.owed.update(self.pending)
            self.pending = {}
            listener.has_ended(self, is_cancelled=is_cancelled)

    async def _listen_on(self, connection: AsyncConnection) -> None:
        is_clean = False
        try:
            while self._listener.waiters and not self._is_stopped:
                await self._blpop(connection)
            is_clean = True
        finally:
            if not is_clean:
                await connection.disconnect(nowait=True)
            await self._listener.pool.release(connection)

    async def _blpop(self, connection: AsyncConnection) -> None:
        listener = self._listener
        lists = listener.waiters.lists()
        owed, listener.owed = listener.owed, {}
        self.pending = {**owed, **lists}
        lasts_ms = blpop_ms(listener.pool)
        commands = [eval_command(wake_list.pass_on) for wake_list in owed.values()]
        commands.append(blpop_command(lists, listener.bell, lasts_ms))
        await connection.send_packed_command([pack(command) for command in commands])
        timeout_s = overdue_at(lasts_ms) - time.monotonic()
        for _ in owed:
            with contextlib.suppress(redis.ResponseError):
                await connection.read_response(disable_decoding=True, timeout=timeout_s)
        self.pending = lists
        popped = await connection.read_response(disable_decoding=True, timeout=timeout_s)
        # Nothing is awaited between here and the next BLPOP: no waiter can come in between.
        wake_list = lists.get(popped[0].decode()) if isinstance(popped, list) else None
        self.pending = {}
        if wake_list is not None and not listener.waiters.wake_longest(wake_list):
            listener.owed[wake_list] = wake_list
