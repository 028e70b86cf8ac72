"""Create and emit lock events, for both kinds of backend. Never makes a lock operation fail."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Literal

from syncguard._lock.callbacks import run_in_background
from syncguard._lock.handles import Grant
from syncguard.errors import LockError, invalid_argument
from syncguard.types import ExtendResult, LockEvent, OperationName

OnEvent = Callable[[LockEvent], object]
IncludeRaw = bool | Callable[[LockEvent], bool]

Reason = Literal["locked", "expired", "not-found"]

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
        except Exception as error:
            _log(error)

    def observe(self, operation: OperationName, **names: str | None) -> Observation:
        """A context manager that reports one operation: around the call or its ``await``."""
        return Observation(self, operation, names)

    def report_extension(self, lock_id: str, answer: ExtendResult | LockError) -> None:
        """Report one extension of a heartbeat."""
        if isinstance(answer, LockError):
            self.report("extend", False, lock_id=lock_id)
        else:
            self.report("extend", answer.ok, lock_id=lock_id, reason=answer.reason)


class Observation:
    """One operation: reports its result, or that it raised."""

    __slots__ = ("_names", "_operation", "_reporter")

    def __init__(self, reporter: Reporter, operation: OperationName, names: dict[str, Any]) -> None:
        self._reporter = reporter
        self._operation: OperationName = operation
        self._names = names

    def __enter__(self) -> Observation:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> Literal[False]:
        if isinstance(error, LockError):
            # An invalid key or lock id is not hashed: it may be any object.
            names = {} if error.code == "InvalidArgument" else self._names
            self._reporter.report(self._operation, False, **names)
        return False

    def ended(self, ok: bool, reason: Reason | None = None) -> None:
        self._reporter.report(self._operation, ok, reason=reason, **self._names)

    def granted(self, grant: Grant) -> None:
        self._reporter.report(self._operation, True, key=grant.key, lock_id=grant.lock_id)


def _log(_error: Exception) -> None:
    # No traceback: with include_raw it could contain the key and the lock id.
    _logger.error("The telemetry callback failed; the lock operation was not affected.")
