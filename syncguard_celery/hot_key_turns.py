"""When a task that met contention tries again: it waits in its slot, or is published again.

A backend that keeps a queue for each key decides which (``TurnGiver``): at most one task for each
key waits, and the release wakes it; the others are published again for when it is their turn. With
any other backend a task is published again after a delay that grows with its attempts.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from syncguard import LockBackend, LockError, Turn, TurnGiver
from syncguard_celery.message_header import header_of

if TYPE_CHECKING:
    from celery.app.task import Context

FIRST_DELAY_MS: Final = 200.0
MAX_DELAY_MS: Final = 10_000
"""The delay grows each time a task meets contention, up to this limit."""

MIN_DELAY_MS: Final = 25.0
SLOT_WAIT_MS: Final = 2_000
"""How long a task may wait in its worker's slot for a lock that is about to be free."""

_MAX_KEYS: Final = 256
_holds: Final[dict[str, int]] = {}
"""By key: for how many ms this process held a contended lock. Removed once sent to the queue."""


def next_turn(
    backend: LockBackend, key: str, request: Context | None, left_ms: float | None, *, waits: bool
) -> Turn:
    """What a task that may contend for ``left_ms`` more does now. ``waits``: it may wait."""
    turn = None
    if isinstance(backend, TurnGiver):
        turn = backend.next_turn(
            key,
            place_ms=_number(request, "place"),
            held_ms=_holds.pop(key, 0),
            max_wait_ms=SLOT_WAIT_MS if waits else 0,
            max_delay_ms=MAX_DELAY_MS,
        )
    if turn is not None and turn.ticket is not None:
        return turn
    attempts = attempts_of(request)
    if turn is None:
        turn = Turn(delay_ms=_backoff_ms(attempts))
    delay_ms = max(turn.delay_ms, _min_delay_ms(attempts))
    if left_ms is not None:
        delay_ms = min(delay_ms, max(0, round(left_ms)))
    return Turn(None, delay_ms, turn.place_ms)


def attempts_of(request: Context | None) -> int:
    """How many deliveries of this task have met contention before this one."""
    return _number(request, "attempts")


@contextlib.contextmanager
def waiting_turn(backend: LockBackend, key: str, ticket: str) -> Iterator[None]:
    """A wait with this ticket. After it, another task may wait."""
    try:
        yield
    finally:
        if isinstance(backend, TurnGiver):
            # If this fails, the ticket expires.
            with contextlib.suppress(LockError):
                backend.end_wait(key, ticket)


def record_hold(key: str, held_ms: float) -> None:
    """Record how long a task that met contention held this lock. ``next_turn`` sends it."""
    _holds.pop(key, None)
    _holds[key] = max(1, round(held_ms))
    while len(_holds) > _MAX_KEYS:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # removed by a thread
            del _holds[next(iter(_holds))]


def _backoff_ms(attempts: int) -> int:
    delay_ms = min(FIRST_DELAY_MS * 2.0 ** min(attempts, 16), MAX_DELAY_MS)
    return round(delay_ms * random.uniform(0.5, 1.0))  # noqa: S311 - jitter


def _min_delay_ms(attempts: int) -> int:
    """Grows, so that attempts stay few even if a queue's estimates are always too short."""
    return round(min(MIN_DELAY_MS * 1.5 ** min(attempts, 32), MAX_DELAY_MS))


def _number(request: Context | None, name: str) -> int:
    """A number from the message's header; 0 if it is missing or out of range."""
    number = header_of(request).get(name)
    return number if type(number) is int and 0 < number < 2**53 else 0
