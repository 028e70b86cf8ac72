"""The values that go in and out: results, lock information, events, capabilities, policies.

All are small and frozen. A result is true if it is a success. None of them shows a raw key or a
lock id when printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

from syncguard.constants import (
    DEFAULT_ACQUISITION_TIMEOUT_MS,
    DEFAULT_MAX_RETRIES,
    DEFAULT_RETRY_DELAY_MS,
)
from syncguard.errors import LockError, invalid_argument

Fence = str
"""Fifteen digits. A later holder's fence is the larger string; compare with ``<`` and ``==``."""

AbsenceReason = Literal["expired", "not-found"]
Backoff = Literal["exponential", "fixed"]
Jitter = Literal["equal", "full", "none"]
OperationName = Literal["acquire", "release", "extend", "isLocked", "lookup"]
TimeAuthority = Literal["server", "client"]


class Signal(Protocol):
    """What can call off an operation: anything with ``is_set``, such as threading.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """What a backend is and promises."""

    backend: str
    supports_fencing: bool
    time_authority: TimeAuthority


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """``ok`` is False when the lock was already gone. Not an error: releasing is idempotent."""

    ok: bool
    reason: AbsenceReason | None = field(default=None, compare=False, repr=False)
    """Why not, where the backend knew without asking again. For telemetry."""
    assumed: bool = field(default=False, compare=False, repr=False)
    """``ok`` was not said by the server: the reply was lost, and afterwards the lock was gone."""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """``expires_at_ms`` is the new expiry on the server's clock, or None when the lock is gone."""

    ok: bool
    expires_at_ms: int | None = None
    reason: AbsenceReason | None = field(default=None, compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A live lock, sanitized: hashes instead of the key and the lock id."""

    key_hash: str
    lock_id_hash: str
    expires_at_ms: int
    acquired_at_ms: int
    fence: Fence
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class LockInfoDebug(LockInfo):
    """A live lock with its raw key and lock id. SENSITIVE: whoever has the id can release it."""

    key: str = field(default="", repr=False, kw_only=True)
    lock_id: str = field(default="", repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class LockEvent:
    """What ``with_telemetry`` reports of one operation."""

    type: OperationName
    result: Literal["ok", "fail"]
    key_hash: str | None = None
    lock_id_hash: str | None = None
    reason: Literal["locked", "expired", "not-found"] | None = None
    key: str | None = field(default=None, repr=False)
    lock_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ReleaseErrorContext:
    """Which release failed. Holds raw identifiers, and shows none of them when printed."""

    key: str = field(repr=False)
    lock_id: str = field(repr=False)
    source: Literal["lock", "handle"]
    """``lock``: leaving a ``lock()`` block; ``handle``: leaving ``with backend.acquire()``."""


OnReleaseError = Callable[[LockError, ReleaseErrorContext], object]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """How ``lock()`` tries: how often, how long apart, and for how long altogether.

    ``max_retries`` counts the delays that ran out. An attempt that was woken because the holder
    let go costs none: contention on a busy lock is bounded by ``timeout_ms`` alone.
    """

    max_retries: int = DEFAULT_MAX_RETRIES
    retry_delay_ms: int = DEFAULT_RETRY_DELAY_MS
    backoff: Backoff = "exponential"
    jitter: Jitter = "equal"
    timeout_ms: int = DEFAULT_ACQUISITION_TIMEOUT_MS

    def __post_init__(self) -> None:
        for name in ("max_retries", "retry_delay_ms", "timeout_ms"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise invalid_argument(f"{name} must be a whole number, zero or more")
        if self.backoff not in get_args(Backoff):
            raise invalid_argument(f"backoff must be one of {get_args(Backoff)}")
        if self.jitter not in get_args(Jitter):
            raise invalid_argument(f"jitter must be one of {get_args(Jitter)}")


@dataclass(frozen=True, slots=True)
class Contended:
    """Somebody else holds the lock. It is false; in ``with`` and ``async with`` it does nothing."""

    ok: Literal[False] = field(default=False, init=False)
    reason: Literal["locked"] = field(default="locked", init=False)

    def __bool__(self) -> Literal[False]:
        return False

    def __enter__(self) -> Contended:
        return self

    def __exit__(self, *_exc: object) -> None: ...

    async def __aenter__(self) -> Contended:
        return self

    async def __aexit__(self, *_exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class NotAdopted:
    """There was nothing to adopt: the lock is gone, or its id was redeemed before. It is false."""

    ok: Literal[False] = field(default=False, init=False)
    reason: AbsenceReason = "not-found"

    def __bool__(self) -> Literal[False]:
        return False


CONTENDED: Final = Contended()
DEFAULT_ACQUISITION: Final = Acquisition()
