"""Wait until a condition is true, and fail after a time limit: no test sleeps a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from syncguard import Acquisition, LockEvent
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms

TTL_MS = 9_000
"""The TTL of locks that must not be lost in a test: a process on a busy machine can stall for some
seconds. After a third of the TTL an extension fails, after two thirds the lock is really lost."""

LOSS_TTL_MS = 3_000
"""The TTL of locks that a test only waits to lose: if they are lost early, it does not matter."""

PATIENT = Acquisition(timeout_ms=60_000)
"""For a lock with a short TTL: a busy machine may need some seconds to acquire it."""


def wait_until(condition: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)


def wait_until_extended(held: Held) -> None:
    """Wait for one more extension.

    Seen at the holder's clock: two extensions within a millisecond have one ``expires_at_ms``.
    """
    before = held.deadline_ms
    wait_until(lambda: held.deadline_ms > before)


async def wait_until_async(condition: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.002)


async def wait_until_extended_async(held: Held) -> None:
    before = held.deadline_ms
    await wait_until_async(lambda: held.deadline_ms > before)


def is_between_two_beats(held: Held) -> bool:
    """Extended at least once, and the next extension is neither in flight nor due soon."""
    since_last_ms = holder_clock_ms() - (held.deadline_ms - TTL_MS)
    extended = held.deadline_ms > held._grant.sent_at_ms + TTL_MS
    return extended and TTL_MS / 8 < since_last_ms < TTL_MS / 4


def results_of_extensions(events: Iterable[LockEvent]) -> set[str]:
    return {event.result for event in events if event.type == "extend"}
