"""When to extend which lock, and when to give one up. No I/O, no threads, no clock of its own.

A lock is extended at a third of its TTL. A fault is tried again soon, until the deadline: the
moment the last successful request was sent, plus the TTL. Shortly before that moment the lock is
lost, so that the news arrives before anybody else can have it.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Final, Generic, TypeVar

from syncguard.held import Held

LaneT = TypeVar("LaneT")

_NEVER: Final = float("inf")
_SMALL: Final = 64


class Beat(Generic[LaneT]):
    """One lock under watch."""

    __slots__ = ("due_ms", "held", "lane", "over", "renew_until_ms", "sending", "ttl_ms", "when_ms")

    def __init__(
        self, held: Held, lane: LaneT, ttl_ms: int, due_ms: float, renew_until_ms: float
    ) -> None:
        self.held = held
        self.lane = lane
        self.ttl_ms = ttl_ms
        self.due_ms = due_ms
        self.renew_until_ms = renew_until_ms
        self.sending = False
        self.over = False
        self.when_ms = _NEVER

    @property
    def lost_at_ms(self) -> float:
        return self.held.deadline_ms - min(20.0, self.ttl_ms / 50)

    def next_ms(self) -> float:
        renews = not self.sending and self.due_ms < self.renew_until_ms
        return min(self.due_ms, self.lost_at_ms) if renews else self.lost_at_ms


class Schedule(Generic[LaneT]):
    """All locks under watch in one process or event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Beat[LaneT]]] = []
        self._order = itertools.count()
        self._alive = 0

    def add(
        self,
        held: Held,
        lane: LaneT,
        ttl_ms: int,
        sent_at_ms: float,
        *,
        renews: bool,
        max_hold_ms: int | None = None,
    ) -> Beat[LaneT]:
        """Watch a lock from now on; ``renews=False`` only watches its deadline."""
        until = sent_at_ms + max_hold_ms if max_hold_ms is not None else _NEVER
        beat = Beat(held, lane, ttl_ms, sent_at_ms + ttl_ms / 3, until if renews else -_NEVER)
        self._alive += 1
        self._push(beat)
        return beat

    def remove(self, beat: Beat[LaneT]) -> None:
        """The holder lets go: from now on nothing is done about this lock."""
        if beat.over:
            return
        beat.over = True
        self._alive -= 1
        if len(self._heap) > _SMALL and len(self._heap) > 3 * self._alive:
            # Short blocks under long TTLs: entries of locks that are gone must not pile up.
            self._heap = [entry for entry in self._heap if _is_current(entry)]
            heapq.heapify(self._heap)

    def next_ms(self) -> float | None:
        """When ``take_due`` has something to say next."""
        while self._heap:
            if _is_current(self._heap[0]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ms: float) -> tuple[list[Beat[LaneT]], list[Beat[LaneT]]]:
        """(lost, due): locks to ``remove`` and give up; locks to extend, counted as sent now."""
        lost: list[Beat[LaneT]] = []
        due: list[Beat[LaneT]] = []
        while (when := self.next_ms()) is not None and when <= now_ms:
            beat = heapq.heappop(self._heap)[2]
            if now_ms >= beat.lost_at_ms:
                beat.when_ms = _NEVER
                lost.append(beat)
            else:
                beat.sending = True
                self._push(beat)
                due.append(beat)
        return lost, due

    def extended(self, beat: Beat[LaneT], sent_at_ms: float, expires_at_ms: int) -> None:
        """The server confirmed a request that was sent at ``sent_at_ms``."""
        if not beat.over:
            beat.held.renewed(sent_at_ms, beat.ttl_ms, expires_at_ms)
            beat.due_ms = sent_at_ms + beat.ttl_ms / 3
            beat.sending = False
            self._push(beat)

    def failed(self, beat: Beat[LaneT], now_ms: float) -> None:
        """The request got no answer, or an error: try again soon."""
        if not beat.over:
            beat.due_ms = now_ms + min(250.0, max(10.0, beat.ttl_ms / 20))
            beat.sending = False
            self._push(beat)

    def _push(self, beat: Beat[LaneT]) -> None:
        beat.when_ms = beat.next_ms()
        heapq.heappush(self._heap, (beat.when_ms, next(self._order), beat))


def _is_current(entry: tuple[float, int, Beat[LaneT]]) -> bool:
    """Whether an entry of the heap still speaks for its lock; a later one may have replaced it."""
    when_ms, _, beat = entry
    return not beat.over and when_ms == beat.when_ms
