"""Make an extension due at once: no test waits for a third of a long TTL."""

from __future__ import annotations

import asyncio
import weakref

from wait_until import wait_until, wait_until_async

from syncguard._heartbeat import heartbeat, heartbeat_async
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.lock import Lock
from syncguard.redis import AsyncRedisBackend


def beat_now(held_lock: Lock) -> None:
    """Make the next extension of a lock due at once."""
    thread, watch = heartbeat._heartbeat.thread, held_lock._watch
    assert thread is not None
    assert watch is not None
    watch.beat.due_ms = holder_clock_ms()
    watch.unclaimed = [None]
    thread.registrations.append(weakref.ref(watch))
    thread.wake()


def extend_now(held_lock: Lock, held: Held) -> None:
    """Make the next extension of a lock due at once, and wait for it."""
    before = held.deadline_ms
    beat_now(held_lock)
    wait_until(lambda: held.deadline_ms > before)


def beat_now_async(
    held: Held, backend: AsyncRedisBackend
) -> heartbeat_async.AsyncBackendConnection:
    """Make the next extension of a lock due at once."""
    beating = heartbeat_async._heartbeats[asyncio.get_running_loop()]
    (beat,) = [beat for beat in beating._schedule.beats() if beat.held is held]
    beat.due_ms = now_ms = holder_clock_ms()
    beating._schedule.add(beat)
    beating._tick_by(now_ms, now_ms)
    return beating._connections[id(backend), None]


async def extend_now_async(held: Held, backend: AsyncRedisBackend) -> None:
    """Make the next extension of a lock due at once, and wait for it."""
    before = held.deadline_ms
    beat_now_async(held, backend)
    await wait_until_async(lambda: held.deadline_ms > before)
