"""Optional parts of a backend for operators: a list of its live locks, and its health.

Plain values, which adapters render. They contain no key, lock id or password, except for the raw
infos of a page, whose ``repr`` hides them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from syncguard._backend.required import AsyncLockBackend, LockBackend
from syncguard.errors import invalid_argument
from syncguard.types import LockInfo, LockInfoDebug, ReleaseResult

Wanted = Callable[[LockInfoDebug], bool]


@dataclass(frozen=True, slots=True)
class LockPage:
    """Some of the live locks, soonest to expire first. SENSITIVE: raw keys and lock ids."""

    locks: list[LockInfoDebug]
    total: int
    """How many locks are live in all."""
    now_ms: int
    """The time when the page was read, on the clock by which the locks expire."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a store, described by the backend."""

    facts: tuple[tuple[str, str], ...]
    """For people: pairs of a name and a value, in display order."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """For programs: the same for JSON, with names such as ``roundTripMs``."""
    findings: tuple[str, ...] = ()
    """What an operator should change, in sentences; empty if all is well."""
    fences_can_go_back: str | None = None
    """Why a fence can be given out twice on this store, or why that is unknown. None: it cannot,
    or the fence floor is set."""


@runtime_checkable
class ListsLocks(Protocol):
    """A backend that can list its live locks. The admin page and the commands need it."""

    def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        """The live locks, sanitized, soonest to expire first."""
        ...

    def count_live_locks(self) -> int: ...

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """The same locks with their raw keys, their total number, and the time: in one request.

        With the limit 0: only the number and the time. SENSITIVE.
        """
        ...

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """The live locks that match. SENSITIVE. Do not decide a mutation by the result.

        Finds every matching lock that is held during the whole search. The fence and the time of
        acquisition, if given, narrow the search.
        """
        ...

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock, if the holder is still the given one."""
        ...


@runtime_checkable
class AsyncListsLocks(Protocol):
    """An asyncio backend that can list its live locks."""

    async def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]: ...

    async def count_live_locks(self) -> int: ...

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage: ...

    async def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]: ...

    async def force_release(
        self, key_hash: str, *, fence: str, lock_id_hash: str
    ) -> ReleaseResult: ...


@runtime_checkable
class ReportsHealth(Protocol):
    """A backend that reports the state of its store. ``syncguard_status --check`` needs it."""

    def health(self) -> Health:
        """Read the state of the store. Raises LockError if it does not answer."""
        ...


@runtime_checkable
class AsyncReportsHealth(Protocol):
    """The same for asyncio."""

    async def health(self) -> Health:
        """Read the state of the store. Raises LockError if it does not answer."""
        ...


def offers(backend: object, part: type) -> bool:
    """Whether a backend has an optional part. Unwraps it first, e.g. from telemetry."""
    while hasattr(backend, "__wrapped__"):
        backend = backend.__wrapped__
    return isinstance(backend, part)


def listing_of(backend: LockBackend) -> ListsLocks:
    """The backend itself. Raises InvalidArgument if it cannot list its locks."""
    if isinstance(backend, ListsLocks):
        return backend
    raise invalid_argument(f"{type(backend).__name__} does not list its locks")


def async_listing_of(backend: AsyncLockBackend) -> AsyncListsLocks:
    """The same for asyncio."""
    if isinstance(backend, AsyncListsLocks):
        return backend
    raise invalid_argument(f"{type(backend).__name__} does not list its locks")


def health_of(backend: LockBackend) -> ReportsHealth:
    """The backend itself. Raises InvalidArgument if it does not report its health."""
    if isinstance(backend, ReportsHealth):
        return backend
    raise invalid_argument(f"{type(backend).__name__} does not report its health")


def async_health_of(backend: AsyncLockBackend) -> AsyncReportsHealth:
    """The same for asyncio."""
    if isinstance(backend, AsyncReportsHealth):
        return backend
    raise invalid_argument(f"{type(backend).__name__} does not report its health")


def sanitized(info: LockInfoDebug) -> LockInfo:
    """The same lock without its key and lock id."""
    return LockInfo(
        info.key_hash,
        info.lock_id_hash,
        info.expires_at_ms,
        info.acquired_at_ms,
        info.fence,
        info.holder,
    )
