"""When a task that met contention tries again: it waits in its slot, or comes back later.

A backend that keeps a queue for each key says which (``TurnGiver``): at most one task for each
key waits, woken by the release; the others come back when it is their turn. With any other
backend a task comes back after a delay that grows with its attempts.
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
LAST_DELAY_MS: Final = 10_000
"""A task that meets contention again comes back later each time, but not later than this."""

LEAST_DELAY_MS: Final = 25.0
SLOT_WAIT_MS: Final = 2_000
"""How long a task may wait in its worker's slot for a lock that is about to be free."""

_KEYS_KNOWN: Final = 256
_holds: Final[dict[str, int]] = {}
"""How long this process held a lock that others wanted, in ms, by key; until the queue is told."""


def next_turn(
    backend: LockBackend, key: str, request: Context | None, left_ms: float | None, *, waits: bool
) -> Turn:
    """What to do now, for a task that has ``left_ms`` to contend; ``waits``: it may wait."""
    turn = None
    if isinstance(backend, TurnGiver):
        turn = backend.next_turn(
            key,
            place_ms=_number(request, "place"),
            held_ms=_holds.pop(key, 0),
            max_wait_ms=SLOT_WAIT_MS if waits else 0,
            max_delay_ms=LAST_DELAY_MS,
        )
    if turn is not None and turn.ticket is not None:
        return turn
    attempts = attempts_of(request)
    if turn is None:
        turn = Turn(delay_ms=_backoff_ms(attempts))
    delay_ms = max(turn.delay_ms, _least_delay_ms(attempts))
    if left_ms is not None:
        delay_ms = min(delay_ms, max(0, round(left_ms)))
    return Turn(None, delay_ms, turn.place_ms)


def attempts_of(request: Context | None) -> int:
    """How many deliveries of this task have met contention before this one."""
    return _number(request, "attempts")


@contextlib.contextmanager
def waiting_turn(backend: LockBackend, key: str, ticket: str) -> Iterator[None]:
    """A wait that a turn called for. After it, another task may wait."""
    try:
        yield
    finally:
        if isinstance(backend, TurnGiver):
            # If this fails, the ticket runs out by itself.
            with contextlib.suppress(LockError):
                backend.end_wait(key, ticket)


def note_hold(key: str, held_ms: float) -> None:
    """A task that met contention held this lock for so long: told with the next turn."""
    _holds.pop(key, None)
    _holds[key] = max(1, round(held_ms))
    while len(_holds) > _KEYS_KNOWN:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread did it
            del _holds[next(iter(_holds))]


def _backoff_ms(attempts: int) -> int:
    delay_ms = min(FIRST_DELAY_MS * 2.0 ** min(attempts, 16), LAST_DELAY_MS)
    return round(delay_ms * random.uniform(0.5, 1.0))  # noqa: S311 - jitter


def _least_delay_ms(attempts: int) -> int:
    """Grows so that the attempts stay few even where a queue's estimates are always too short."""
    return round(min(LEAST_DELAY_MS * 1.5 ** min(attempts, 32), LAST_DELAY_MS))


def _number(request: Context | None, name: str) -> int:
    """A number that came with the message; 0 if there is none that makes sense."""
    number = header_of(request).get(name)
    return number if type(number) is int and 0 < number < 2**53 else 0
