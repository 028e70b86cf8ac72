"""When to extend which lock, and when a lock is lost. No I/O, no threads, reads no clock.

A lock is extended at a third of its TTL. A failed extension is retried soon, until the deadline:
the moment the last successful request was sent, plus the TTL. The lock counts as lost shortly
before the deadline, so that ``on_lost`` runs before anybody else can acquire the lock.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from typing import Final, Generic, TypeVar

from syncguard._lock.held import Held

ConnectionT = TypeVar("ConnectionT")

_NEVER: Final = float("inf")
_SMALL_HEAP: Final = 64
_EARLY_MS: Final = 25.0


class Beat(Generic[ConnectionT]):
    """One lock to extend; ``renews=False`` only watches its deadline.

    Any thread may set ``over`` at any time: after that the schedule ignores this lock.
    """

    __slots__ = (
        "connection",
        "due_ms",
        "held",
        "over",
        "owner",
        "renew_until_ms",
        "sending",
        "ttl_ms",
        "when_ms",
    )

    def __init__(
        self,
        held: Held,
        connection: ConnectionT,
        ttl_ms: int,
        sent_at_ms: float,
        *,
        renews: bool,
        max_hold_ms: int | None = None,
    ) -> None:
        until_ms = _NEVER if max_hold_ms is None else sent_at_ms + max_hold_ms
        self.held = held
        self.connection = connection
        self.ttl_ms = ttl_ms
        self.due_ms = sent_at_ms + ttl_ms / 3
        self.renew_until_ms = until_ms if renews else -_NEVER
        self.sending = False
        self.over = False
        self.owner: weakref.ref[object] | None = None
        """The holder's reference to this beat. The beat is over when it is garbage-collected."""
        self.when_ms = self.next_ms()

    @property
    def has_owner(self) -> bool:
        """False once the owning lock was dropped without leaving its block."""
        return self.owner is None or self.owner() is not None

    @property
    def is_active(self) -> bool:
        """False once the owning lock has left its block, or was dropped."""
        if not self.over and not self.has_owner:
            self.over = True
        return not self.over

    @property
    def lost_at_ms(self) -> float:
        return self.held.deadline_ms - min(20.0, self.ttl_ms / 50)

    def may_be_sent_early(self, now_ms: float) -> bool:
        """Whether the next extension is due soon: within 25 ms, and one percent of the TTL."""
        early_ms = min(_EARLY_MS, self.ttl_ms / 100)
        return self.when_ms == self.due_ms <= now_ms + early_ms

    def next_ms(self) -> float:
        renews = not self.sending and self.due_ms < self.renew_until_ms
        return min(self.due_ms, self.lost_at_ms) if renews else self.lost_at_ms


class Schedule(Generic[ConnectionT]):
    """All locks that one process or event loop extends."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Beat[ConnectionT]]] = []
        self._order = itertools.count()
        self._drop_stale_at = _SMALL_HEAP

    def add(self, beat: Beat[ConnectionT]) -> None:
        """Watch a lock from now on, until its beat is over."""
        self._push(beat)

    def beats(self) -> list[Beat[ConnectionT]]:
        """The beats that are not over."""
        self._drop_stale()
        return [beat for _, _, beat in self._heap]

    def next_ms(self) -> float | None:
        """When ``take_due`` will return something next."""
        while self._heap:
            if _is_current(self._heap[0]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ms: float) -> tuple[list[Beat[ConnectionT]], list[Beat[ConnectionT]]]:
        """(lost, due): lost locks, whose beats end; and locks to extend, marked as sending.

        If one lock is due, so are those that are due soon: one request extends many of them.
        """
        lost: list[Beat[ConnectionT]] = []
        due: list[Beat[ConnectionT]] = []
        while (when := self.next_ms()) is not None:
            beat = self._heap[0][2]
            if when > now_ms and not (due and beat.may_be_sent_early(now_ms)):
                break
            heapq.heappop(self._heap)
            if now_ms >= beat.lost_at_ms:
                beat.over = True
                lost.append(beat)
            elif now_ms >= beat.renew_until_ms:
                beat.due_ms = _NEVER  # it was due earlier, but this process was paused meanwhile
                self._push(beat)
            else:
                beat.sending = True
                self._push(beat)
                due.append(beat)
        return lost, due

    def extended(self, beat: Beat[ConnectionT], sent_at_ms: float, expires_at_ms: int) -> None:
        """The server confirmed a request that was sent at ``sent_at_ms``."""
        beat.sending = False
        if not beat.over:
            beat.held.renewed(sent_at_ms, beat.ttl_ms, expires_at_ms)
            beat.due_ms = sent_at_ms + beat.ttl_ms / 3
            self._push(beat)

    def failed(self, beat: Beat[ConnectionT], now_ms: float) -> None:
        """The request got no answer, or an error: retry soon."""
        beat.sending = False
        if not beat.over:
            beat.due_ms = now_ms + min(250.0, max(10.0, beat.ttl_ms / 20))
            self._push(beat)

    def _push(self, beat: Beat[ConnectionT]) -> None:
        if len(self._heap) >= self._drop_stale_at:
            # Short blocks with long TTLs: entries of released locks must not accumulate.
            self._drop_stale()
            self._drop_stale_at = max(_SMALL_HEAP, 3 * len(self._heap))
        beat.when_ms = beat.next_ms()
        heapq.heappush(self._heap, (beat.when_ms, next(self._order), beat))

    def _drop_stale(self) -> None:
        self._heap = [entry for entry in self._heap if _is_current(entry)]
        heapq.heapify(self._heap)


def _is_current(entry: tuple[float, int, Beat[ConnectionT]]) -> bool:
    """Whether this heap entry is the latest of a lock that is not over."""
    when_ms, _, beat = entry
    return not beat.over and when_ms == beat.when_ms
