"""A lock while it is held: its fence, and whether it was lost.

The holder decides by its own clock, without a request: a lock whose last successful request was
sent at T counts as lost after T + TTL, whether or not the server can be reached.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial

from syncguard._lock.handles import Grant
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockLost
from syncguard.keys import validate_ttl_ms
from syncguard.types import Fence

OnLost = Callable[["Held"], object] | Callable[[], object]
"""Called once when the lock is lost: with the ``Held``, or without it if it takes no argument."""


class Held:
    """What ``with lock(...) as held`` gives. Safe to read from any thread."""

    __slots__ = (
        "_expires_at_ms",
        "_grant",
        "_on_lost",
        "_unannounced",
        "deadline_ms",
        "ended_late",
        "kept",
        "known_lost",
    )

    def __init__(self, grant: Grant, on_lost: OnLost | None = None) -> None:
        self._grant = grant
        self._expires_at_ms = grant.expires_at_ms
        # Copied before the lock is on the stack of held locks: else the two would be a cycle.
        self._on_lost = None if on_lost is None else (on_lost, copy_context())
        self._unannounced: list[None] = [None]
        # For lock() and the heartbeat:
        self.deadline_ms = grant.sent_at_ms + grant.ttl_ms
        self.kept: tuple[int | None] | None = None
        """None: release when the block ends. A tuple of one TTL: keep the lock with that TTL."""
        self.known_lost = False
        """Whether the heartbeat or a read of ``lost`` found that the lock was lost."""
        self.ended_late: bool | None = None
        """None: held. Else its block has ended: whether that was after the deadline."""

    @property
    def fence(self) -> Fence:
        """The fencing token: pass it to the resource that this lock protects."""
        return self._grant.fence

    @property
    def lock_id(self) -> str:
        return self._grant.lock_id

    @property
    def expires_at_ms(self) -> int:
        """When the lock expires if it is not extended again, on the server's clock."""
        return self._expires_at_ms

    @property
    def lost(self) -> bool:
        """Whether the lock was lost before its block ended. Once True, it stays True.

        In a forked child it is True: the parent holds the lock.
        """
        if self.known_lost or self.ended_late is not None:
            return self.known_lost
        if self.past_deadline or self.in_forked_child:
            self.known_lost = True
        return self.known_lost

    def ensure_held(self) -> None:
        """Raise LockLost if the lock was lost, or was released. Cheap: sends no request."""
        if self.lost:
            raise LockLost()
        if self.ended_late is not None:
            raise LockLost("the lock is not held any more: its block has ended")

    def keep(self, ttl_ms: int | None = None) -> None:
        """Do not release when the block ends: the lock stays until its TTL ends.

        With ``ttl_ms``, leaving the block sets this TTL. After the block nothing extends the lock.
        """
        if ttl_ms is not None:
            validate_ttl_ms(ttl_ms)
        self.kept = (ttl_ms,)

    def __repr__(self) -> str:
        ended = self.ended_late is not None
        state = "lost" if self.lost else "ended" if ended else "held"
        return f"<Held fence={self.fence} {state} expires_at_ms={self._expires_at_ms}>"

    # -- for lock() and the heartbeat ---------------------------------------------------------

    @property
    def past_deadline(self) -> bool:
        return holder_clock_ms() >= self.deadline_ms

    @property
    def in_forked_child(self) -> bool:
        return self._grant.pid != os.getpid()

    def end(self) -> None:
        """The block ends now. Was the lock lost? This moment decides, not the end of the release.

        From now on no code holds the lock, also not in a copied context.
        """
        if self.ended_late is None:
            self.ended_late = self.past_deadline

    def renewed(self, sent_at_ms: float, ttl_ms: int, expires_at_ms: int) -> None:
        self.deadline_ms = sent_at_ms + ttl_ms
        self._expires_at_ms = expires_at_ms

    def lose(self) -> tuple[Callable[[], object], Context] | None:
        """Mark as lost. Returns the callback and its context, but only to the first caller."""
        self.known_lost = True
        try:
            self._unannounced.pop()  # atomic: heartbeat and holder may call at the same time
        except IndexError:
            return None
        if self._on_lost is None:
            return None
        on_lost, context = self._on_lost
        return partial(call_on_lost, on_lost, self), context


def call_on_lost(on_lost: OnLost, held: Held) -> object:
    """Call it with the lock, or without an argument if it takes none."""
    try:
        inspect.signature(on_lost).bind(held)
    except (TypeError, ValueError):  # takes no argument, like threading.Event().set
        return on_lost()  # type: ignore[call-arg]
    return on_lost(held)  # type: ignore[call-arg]
