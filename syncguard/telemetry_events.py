"""Create and emit lock events, for both kinds of backend. Never makes a lock operation fail."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from syncguard._backend.optional import Refusal
from syncguard._backend.required import AsyncLockBackend, LockBackend
from syncguard._lock.callbacks import run_in_background
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard._lock.release_after_block import Disposal
from syncguard.errors import LockError, invalid_argument
from syncguard.traceback_locals import hides_arguments_of_methods
from syncguard.types import (
    BackendCapabilities,
    Contended,
    ExtendResult,
    LockEvent,
    NotAdopted,
    OperationName,
    ReleaseResult,
)

OnEvent = Callable[[LockEvent], object]
IncludeRaw = bool | Callable[[LockEvent], bool]

Reason = Literal["locked", "expired", "not-found"]

BackendT = TypeVar("BackendT", bound=LockBackend | AsyncLockBackend)
T = TypeVar("T")

_logger = logging.getLogger("syncguard")


class Reporter:
    """Emits events with hashes; with the key and the lock id only if ``include_raw`` allows it."""

    def __init__(self, on_event: OnEvent, include_raw: IncludeRaw, hash: Callable[[str], str]):
        if not callable(on_event):
            raise invalid_argument("on_event must be callable")
        if not isinstance(include_raw, bool) and not callable(include_raw):
            raise invalid_argument("include_raw must be True, False or a function of the event")
        self._on_event = on_event
        self._include_raw = include_raw
        self._hash = hash

    def report(
        self,
        operation: OperationName,
        ok: bool,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        key_hash: str | None = None,
        lock_id_hash: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        try:
            event = LockEvent(
                operation,
                "ok" if ok else "fail",
                key_hash=key_hash if key is None else self._hash(key),
                lock_id_hash=lock_id_hash if lock_id is None else self._hash(lock_id),
                reason=reason,
            )
            permitted = self._include_raw
            if permitted if isinstance(permitted, bool) else permitted(event):
                event = dataclasses.replace(event, key=key, lock_id=lock_id)
            run_in_background(self._on_event(event), _log)
        except (Exception, SystemExit) as error:
            # sys.exit() in a callback must end neither a lock operation nor the callback's thread.
            _log(error)

    def report_extension(self, lock_id: str, answer: ExtendResult | LockError) -> None:
        """Report one extension of a heartbeat."""
        if isinstance(answer, LockError):
            self.report("extend", False, lock_id=lock_id)
        else:
            self.report("extend", answer.ok, lock_id=lock_id, reason=answer.reason)


@hides_arguments_of_methods()
class Reporting(Generic[BackendT]):
    """What the blocking and the asyncio wrapper share. No I/O."""

    def __init__(self, backend: BackendT, reporter: Reporter) -> None:
        self._inner = backend
        self.__wrapped__ = backend
        self._reporter = reporter

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._inner.capabilities

    @property
    def disposal(self) -> Disposal:
        return self._inner.disposal

    def hash(self, value: str) -> str:
        return self._inner.hash(value)

    def __repr__(self) -> str:
        return f"with_telemetry({self._inner!r})"

    def _observe(self, operation: OperationName, **names: str | None) -> Observation:
        """A context manager that reports one operation: around the call or its ``await``."""
        return Observation(self, self._reporter, operation, names)


class Observation:
    """One operation: reports what the backend answered, or that it raised."""

    __slots__ = ("_names", "_operation", "_reporter", "_wrapper")

    def __init__(
        self,
        wrapper: object,
        reporter: Reporter,
        operation: OperationName,
        names: dict[str, str | None],
    ) -> None:
        self._wrapper: Any = wrapper
        self._reporter = reporter
        self._operation: OperationName = operation
        self._names: dict[str, Any] = names

    def __enter__(self) -> Observation:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> Literal[False]:
        if isinstance(error, LockError):
            self.failed(error)
        return False

    def failed(self, error: LockError) -> None:
        # An invalid key or lock id is not hashed: it may be any object.
        names = {} if error.code == "InvalidArgument" else self._names
        self._reporter.report(self._operation, False, **names)

    def answered(self, answer: T) -> T:
        """Report the answer, and return it. A granted lock is released through the wrapper."""
        if isinstance(answer, Acquired | AsyncAcquired):
            self._reporter.report(self._operation, True, key=answer.key, lock_id=answer.lock_id)
            granted: Any = dataclasses.replace(answer, backend=self._wrapper)
            return granted  # type: ignore[no-any-return]
        reason: Reason | None = None
        if isinstance(answer, Refusal):
            reason = "locked"
        elif isinstance(answer, Contended | NotAdopted | ReleaseResult | ExtendResult):
            reason = answer.reason
        # The truth of the others: a result that is ok, True, or a lock that was found.
        ok = bool(answer) and not isinstance(answer, Refusal)
        self._reporter.report(self._operation, ok, reason=reason, **self._names)
        return answer


def _log(_error: BaseException) -> None:
    # No traceback: with include_raw it could contain the key and the lock id.
    _logger.error("The telemetry callback failed; the lock operation was not affected.")
