"""Arguments and results: results, lock information, events, capabilities, policies.

All are small and frozen. A successful result is true. No repr contains a raw key or a lock id.
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
    """Aborts an operation when it is set: any object with ``is_set``, such as threading.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """The name of a backend and its guarantees."""

    backend: str
    supports_fencing: bool
    time_authority: TimeAuthority


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """``ok`` is False if the lock did not exist any more. No error: release is idempotent."""

    ok: bool
    reason: AbsenceReason | None = field(default=None, compare=False, repr=False)
    """Why ``ok`` is False, if the backend knew without another request. For telemetry."""
    assumed: bool = field(default=False, compare=False, repr=False)
    """The server did not confirm ``ok``: the reply was lost, and later the lock did not exist."""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """``expires_at_ms`` is the new expiry on the server's clock, or None if the lock is gone."""

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
    """A live lock with its raw key and lock id. SENSITIVE: the lock id allows to release it."""

    key: str = field(default="", repr=False, kw_only=True)
    lock_id: str = field(default="", repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class LockEvent:
    """What ``with_telemetry`` reports about one operation."""

    type: OperationName
    result: Literal["ok", "fail"]
    key_hash: str | None = None
    lock_id_hash: str | None = None
    reason: Literal["locked", "expired", "not-found"] | None = None
    key: str | None = field(default=None, repr=False)
    lock_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ReleaseErrorContext:
    """Which release failed. The repr contains neither the key nor the lock id."""

    key: str = field(repr=False)
    lock_id: str = field(repr=False)
    source: Literal["lock", "handle"]
    """``lock``: leaving a ``lock()`` block; ``handle``: leaving ``with backend.acquire()``."""


OnReleaseError = Callable[[LockError, ReleaseErrorContext], object]


@dataclass(frozen=True, slots=True)
class Acquisition:
    """How ``lock()`` retries: how often, with which delays, and for how long in total.

    ``max_retries`` counts only delays that ended without a wake-up. An attempt after a wake-up,
    which the holder's release sends, does not count: only ``timeout_ms`` limits those.
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
    """Somebody else holds the lock. Is false; does nothing in ``with`` and ``async with``."""

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
    """Nothing to adopt: the lock is gone, or its id was adopted before. Is false."""

    ok: Literal[False] = field(default=False, init=False)
    reason: AbsenceReason = "not-found"

    def __bool__(self) -> Literal[False]:
        return False


CONTENDED: Final = Contended()
DEFAULT_ACQUISITION: Final = Acquisition()
