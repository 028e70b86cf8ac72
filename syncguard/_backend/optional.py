"""What a backend may offer beyond the required: each part is a protocol of its own.

A backend offers a part by having its methods; nothing is registered. Without ``open_waiter``,
``lock()`` sleeps between attempts; without ``open_extend_channel``, heartbeats call ``extend``;
without ``release_many``, many locks are released one after the other; without ``next_turn``, tasks
come back after growing delays. Listing and health are in ``listing_and_health``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from syncguard._backend.required import LockBackend
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard.errors import LockError
from syncguard.types import ExtendResult, ReleaseResult, Signal


@dataclass(frozen=True, slots=True)
class Refusal:
    """The lock is held; for ``remaining_ms`` longer at most, where the backend knows."""

    remaining_ms: int | None = None


class Waiter(Protocol):
    """One caller of ``lock()``, between its first attempt and its lock."""

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int, /) -> Acquired | Refusal:
        """Try once. ``wait_ms`` above 0: if refused, ``wait`` will be called for that long."""
        ...

    def wait(self, ms: float, signal: Signal | None) -> bool:
        """Wait. True: woken, the lock was let go. False: the time is over.

        Raises LockError("Aborted") within 100 ms of the signal.
        """
        ...

    def close(self) -> None:
        """Leave. A wake-up that was not used goes to the next waiter."""
        ...

    def undo(self) -> None:
        """Give back whatever the last attempt may have taken: its caller was interrupted."""
        ...


class AsyncWaiter(Protocol):
    """One caller of ``syncguard.aio.lock``, between its first attempt and its lock."""

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int, /
    ) -> AsyncAcquired | Refusal: ...

    async def wait(self, ms: float, signal: Signal | None) -> bool: ...

    async def close(self) -> None: ...


@runtime_checkable
class Wakeable(Protocol):
    """A backend that can wake a waiter."""

    def open_waiter(self, key: str) -> Waiter: ...


@runtime_checkable
class AsyncWakeable(Protocol):
    """An asyncio backend that can wake a waiter."""

    def open_waiter(self, key: str) -> AsyncWaiter: ...


Extension = tuple[str, int]
"""A lock id, and the TTL to give it."""


class ExtendChannel(Protocol):
    """A connection of the heartbeat's own. After it was opened, nothing here may block."""

    def fileno(self) -> int: ...

    def send(self, extensions: Sequence[Extension]) -> None:
        """Send what can be sent at once."""
        ...

    @property
    def wants_to_write(self) -> bool:
        """Whether there is more to send, as soon as the file takes it."""
        ...

    def receive(self) -> list[ExtendResult | LockError]:
        """Send more of what is left, and return the answers that have arrived since.

        Called when the file is readable, or writable where that is wanted. The answers come in
        the order of the sending.
        """
        ...

    def close(self) -> None: ...


class AsyncExtendChannel(Protocol):
    """A connection of the heartbeat's own."""

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]: ...

    async def close(self) -> None: ...


@runtime_checkable
class OpensExtendChannel(Protocol):
    """A backend that extends many locks on a connection of its own."""

    def open_extend_channel(self, timeout_ms: float, /) -> ExtendChannel | None:
        """Connect within the time. None: there is no such channel after all."""
        ...


@runtime_checkable
class AsyncOpensExtendChannel(Protocol):
    """An asyncio backend that extends many locks on a connection of its own."""

    async def open_extend_channel(self, timeout_ms: float, /) -> AsyncExtendChannel | None: ...


@runtime_checkable
class ReleasesMany(Protocol):
    """A backend that releases many locks in few round trips."""

    def release_many(self, lock_ids: Sequence[str], /) -> list[ReleaseResult | LockError]:
        """One result for each lock id, in their order; an error is returned, not raised."""
        ...


def release_many(backend: LockBackend, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
    """Release many locks of one backend: at once where it can, else one after the other.

    After an error the rest is not tried: a server that is down costs its time-out once.
    """
    if isinstance(backend, ReleasesMany):
        return backend.release_many(lock_ids)
    results: list[ReleaseResult | LockError] = []
    failed: LockError | None = None
    for lock_id in lock_ids:
        try:
            results.append(failed or backend.release(lock_id))
        except LockError as error:
            failed = error
            results.append(error)
    return results


DEFAULT_MAX_DELAY_MS: Final = 10_000
"""A caller in a queue comes back at least this often: holders may be quicker than was thought."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When a caller that was refused tries again: it waits now, or comes back after a delay."""

    ticket: str | None = field(default=None, repr=False)
    """Not None: wait for the lock now, then hand this to ``end_wait``. Nobody else waits."""
    delay_ms: int = 0
    """Otherwise: come back after so long."""
    place_ms: int = 0
    """The place in the queue, to be given again by a caller that comes back."""


@runtime_checkable
class TurnGiver(Protocol):
    """A backend that keeps a queue for each key: for callers that rather come back than block.

    The queue grants nothing. Whoever comes uncalled may find the lock free and take it.
    """

    def next_turn(
        self,
        key: str,
        *,
        place_ms: int = 0,
        held_ms: int = 0,
        max_wait_ms: int = 0,
        max_delay_ms: int = ...,
    ) -> Turn | None:
        """When to try again. None: this backend keeps no queue after all.

        ``place_ms`` is that of the caller's last turn; ``held_ms`` how long a holder held this
        lock, told once for each hold: the backend estimates from that. 0 where there is none.
        With ``max_wait_ms`` above 0 the caller offers to wait for that long, and is told to if it
        is its turn, nobody else waits, and the lock may be free by then.
        """
        ...

    def end_wait(self, key: str, ticket: str) -> None:
        """The wait is over, with the lock or without."""
        ...
