"""Leaving a lock's block otherwise than by releasing.

``syncguard.hold`` releases on the way out, by the backend it was given. It is given this one,
which for a single lock can be told to do something else at that moment: keep the lock for a
while (``min_hold_ms``), or hand it on (a retry that keeps its publish-time lock).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, cast

from syncguard import LockBackend, ReleaseResult

Leave = Callable[[], bool]
"""What to do instead of releasing; whether the lock was still there."""


class LeavableBackend:
    """A backend, all but its ``release``. One for each backend: heartbeats go by identity."""

    def __init__(self, backend: LockBackend) -> None:
        self._backend = backend
        self._instead: dict[str, Leave] = {}

    def leave_by(self, lock_id: str, leave: Leave) -> None:
        """When this lock is to be released next, do this instead."""
        self._instead[lock_id] = leave

    def release(self, lock_id: str, **options: Any) -> ReleaseResult:
        leave = self._instead.pop(lock_id, None)
        if leave is None:
            return self._backend.release(lock_id, **options)
        return ReleaseResult(leave())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def __repr__(self) -> str:
        return repr(self._backend)


class WakeableLeavableBackend(LeavableBackend):
    """For a backend that can wake a waiter: a protocol is seen on the class, not by __getattr__."""

    def open_waiter(self, key: str) -> Any:
        return cast("Any", self._backend).open_waiter(key)


_known: Final[dict[int, LeavableBackend]] = {}
_guard: Final = threading.Lock()


def leavable(backend: LockBackend) -> LeavableBackend:
    """The one for this backend. It keeps the backend alive, so that the identity stays its own."""
    found = _known.get(id(backend))
    if found is None:
        with _guard:
            kind = WakeableLeavableBackend if hasattr(backend, "open_waiter") else LeavableBackend
            found = _known.setdefault(id(backend), kind(backend))
    return found
