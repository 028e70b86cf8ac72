"""The optional parts of a backend: one protocol for each part.

A backend has a part if it has its methods; nothing is registered. Without ``open_waiter``,
``lock()`` sleeps between attempts; without ``attempt_until`` or ``acquire_until``, an attempt lasts
as long as the store takes, also beyond the deadline of ``lock()``; without
``open_extend_channel``, heartbeats call ``extend``; without ``server_of``, all extensions share one
channel; without ``release_many``, many locks are
released one after the other; without ``undo``, a failed release of a publisher is not repeated;
without ``next_turn``, tasks are retried after growing delays. Listing and health are in
``listing_and_health``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from syncguard._backend.deadline import Deadline
from syncguard._backend.required import LockBackend
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard.errors import LockError, ServiceUnavailable
from syncguard.types import Contended, ExtendResult, ReleaseResult, Signal


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody else holds the lock, for at most ``remaining_ms`` if that is known."""

    remaining_ms: int | None = None


class Waiter(Protocol):
    """One call of ``lock()``, from its first attempt until it has the lock or fails."""

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int, /) -> Acquired | Refusal:
        """Try once. ``wait_ms`` above 0: if refused, ``wait`` will be called for that long."""
        ...

    def wait(self, ms: float, signal: Signal | None) -> bool:
        """Wait. True: woken, because the lock was released. False: the time is over.

        Raises LockError("Aborted") within 100 ms of the signal.
        """
        ...

    def close(self) -> None:
        """End waiting. Pass an unused wake-up on to the next waiter."""
        ...

    def undo(self) -> None:
        """Release what the last attempt may have acquired, after an interrupt."""
        ...


class AsyncWaiter(Protocol):
    """One call of ``syncguard.aio.lock``, from its first attempt until it has the lock or fails."""

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int, /
    ) -> AsyncAcquired | Refusal: ...

    async def wait(self, ms: float, signal: Signal | None) -> bool: ...

    async def close(self) -> None: ...


@runtime_checkable
class BoundedWaiter(Waiter, Protocol):
    """A waiter whose attempts end in time. ``lock()`` then calls this instead of ``attempt``."""

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline, /
    ) -> Acquired | Refusal:
        """Try once, as ``attempt``, but no longer than the deadline allows.

        Raises LockError("NetworkTimeout") if the store has not answered by then, and
        LockError("Aborted") within 100 ms of the deadline's signal. In both cases the lock may have
        been acquired: the backend must release it, if need be later.
        """
        ...


@runtime_checkable
class AsyncBoundedWaiter(AsyncWaiter, Protocol):
    """The same for asyncio."""

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline, /
    ) -> AsyncAcquired | Refusal: ...


@runtime_checkable
class AcquiresUntil(Protocol):
    """A backend without waiters whose ``acquire`` can end in time: as ``BoundedWaiter`` says."""

    def acquire_until(
        self, key: str, ttl_ms: int, deadline: Deadline, /, *, holder: str | None = None
    ) -> Acquired | Contended: ...


@runtime_checkable
class AsyncAcquiresUntil(Protocol):
    """The same for asyncio."""

    async def acquire_until(
        self, key: str, ttl_ms: int, deadline: Deadline, /, *, holder: str | None = None
    ) -> AsyncAcquired | Contended: ...


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
    """A connection for heartbeats only. Its methods must not block."""

    def fileno(self) -> int: ...

    def send(self, extensions: Sequence[Extension]) -> None:
        """Send what can be sent without blocking."""
        ...

    @property
    def wants_to_write(self) -> bool:
        """Whether more is to be sent as soon as the file is writable."""
        ...

    def receive(self) -> list[ExtendResult | LockError]:
        """Send more of what is left, and return the answers that have arrived.

        Called when the file is readable, or writable if ``wants_to_write``. The answers are in
        the order of the requests.
        """
        ...

    def close(self) -> None: ...


class AsyncExtendChannel(Protocol):
    """A connection for heartbeats only."""

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]: ...

    async def close(self) -> None: ...


@runtime_checkable
class OpensExtendChannel(Protocol):
    """A backend that extends many locks on a separate connection."""

    def open_extend_channel(self, timeout_ms: float, /) -> ExtendChannel | None:
        """Connect within the time. None: this backend has no channel.

        After a RateLimited, the heartbeat calls ``extend`` for the locks that are due, and tries to
        connect again before the next extension.
        """
        ...


@runtime_checkable
class AsyncOpensExtendChannel(Protocol):
    """An asyncio backend that extends many locks on a separate connection."""

    async def open_extend_channel(self, timeout_ms: float, /) -> AsyncExtendChannel | None: ...


class LockMoved(ServiceUnavailable):
    """An answer of a channel to one server: this server does not have the lock now.

    The heartbeat then calls ``extend`` for this lock, once.
    """


@runtime_checkable
class SpreadsLocks(Protocol):
    """A backend on several servers. Heartbeats have a channel to each: one that hangs, or is gone,
    does not delay the extensions on the others."""

    def server_of(self, lock_id: str, /) -> Hashable | None:
        """The server of the lock, as far as is known. Asked before each extension; must not block.

        None: ``open_extend_channel`` and ``extend`` know the way.
        """
        ...

    def open_server_channel(self, server: Hashable, timeout_ms: float, /) -> ExtendChannel:
        """Connect to a server within the time. Its answers may be ``LockMoved``."""
        ...


@runtime_checkable
class AsyncSpreadsLocks(Protocol):
    """The same for asyncio."""

    def server_of(self, lock_id: str, /) -> Hashable | None: ...

    async def open_server_channel(
        self, server: Hashable, timeout_ms: float, /
    ) -> AsyncExtendChannel: ...


@runtime_checkable
class ReleasesMany(Protocol):
    """A backend that releases many locks in few round trips."""

    def release_many(self, lock_ids: Sequence[str], /) -> list[ReleaseResult | LockError]:
        """One result for each lock id, in their order; an error is returned, not raised."""
        ...


def release_many(backend: LockBackend, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
    """Release many locks of one backend: together if it can, else one after the other.

    After an error the rest is not tried: with a server that is down, only one call times out.
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


@runtime_checkable
class Undoes(Protocol):
    """A backend that releases in the background, until the server has answered."""

    def undo(self, lock_id: str, /, *, key: str | None = None, ttl_ms: int = 0) -> None:
        """Release a lock that nobody holds any more; return soon, and never raise a LockError.

        For a lock whose acquire or release got no reply. With ``key``, an acquire of this process
        replaces the lock until then. ``ttl_ms`` is the lock's TTL: try for that long.
        """
        ...


def undo(backend: LockBackend, lock_id: str, *, key: str | None = None, ttl_ms: int = 0) -> None:
    """Release a lock in the background if the backend can, else once, now."""
    if isinstance(backend, Undoes):
        backend.undo(lock_id, key=key, ttl_ms=ttl_ms)
    else:
        with contextlib.suppress(LockError):
            backend.release(lock_id)


DEFAULT_MAX_DELAY_MS: Final = 10_000
"""A caller in a queue retries at least this often: holders may be faster than estimated."""


@dataclass(frozen=True, slots=True)
class Turn:
    """When a refused caller tries again: it waits now, or retries after a delay."""

    ticket: str | None = field(default=None, repr=False)
    """Not None: wait for the lock now, then pass this to ``end_wait``. Nobody else waits."""
    delay_ms: int = 0
    """If ``ticket`` is None: retry after this delay."""
    place_ms: int = 0
    """The place in the queue. Pass it to ``next_turn`` again on the next retry."""


@runtime_checkable
class TurnGiver(Protocol):
    """A backend with a queue for each key: for callers that retry later instead of blocking.

    The queue grants nothing: a caller outside the queue can acquire the lock when it is free.
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
        """When to try again. None: this backend has no queue.

        ``place_ms`` is that of the caller's last turn, 0 if it had none. ``held_ms`` is how long
        the last holder held this lock, passed once for each hold, else 0: the backend estimates
        delays from it. With ``max_wait_ms`` above 0 the caller can wait for that long. It gets a
        ticket if it is next, nobody else waits, and the lock may be free by then.
        """
        ...

    def end_wait(self, key: str, ticket: str) -> None:
        """The wait is over, with the lock or without."""
        ...


@runtime_checkable
class NeedsSetup(Protocol):
    """A backend whose store has to be prepared once, for example with tables."""

    @property
    def setup_sql(self) -> str:
        """What ``setup`` executes, for people who read or run it themselves."""
        ...

    def setup(self) -> None:
        """Prepare the store. Changes nothing if that was done already."""
        ...

    def is_set_up(self) -> bool:
        """Whether the store is prepared."""
        ...


@runtime_checkable
class ProtectsTransactions(Protocol):
    """A backend whose locks are rows of a database, which a transaction there can protect."""

    @property
    def protect_sql(self) -> str:
        """A statement for the connection of the caller, with ``%s`` for the lock id.

        It returns a row if this lock id still holds its lock, and then nobody else can acquire
        the lock until the transaction of that connection ends.
        """
        ...
