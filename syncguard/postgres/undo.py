"""Undoes doubtful acquires in the background: those whose answer was lost.

The server may have executed the request, or may execute it later. ``undo.sql`` handles both, so one
answered call is enough; until the server answers, it is repeated.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from syncguard._lock.background_threads import run_in_thread
from syncguard.errors import LockError

PAUSES_S: Final = (0.0, 0.05, 0.2, 1.0)
"""Before each attempt; the last one also before all others."""

GIVE_UP_S: Final = 60.0
"""After this and the TTL, nothing of the request is left to undo."""

MAX_PENDING: Final = 1_000
"""How many undos wait at most. The oldest is dropped first: its lock expires after its TTL."""

DROP_TIMEOUT_S: Final = 10.0
"""How long ``drop_undos`` waits for an undo that is being executed."""

Pauses = Callable[[int], float | None]


def pauses(ttl_ms: int, clock: Callable[[], float] = time.monotonic) -> Pauses:
    """The pause before the nth attempt, or None to give up."""
    until = clock() + GIVE_UP_S + ttl_ms / 1000

    def pause(nth: int) -> float | None:
        return None if clock() > until else PAUSES_S[min(nth, len(PAUSES_S) - 1)]

    return pause


class UndoThread:
    """The undos of one backend, one after the other, on a thread that ends with the last one.

    No lock: a fork could copy it while it is locked, and the operations of a deque need none.
    """

    is_running: bool
    """Whether a thread works on the undos."""

    is_undoing: bool
    """Whether it executes one now, and does not pause."""

    def __init__(self) -> None:
        self._reset()
        _undo_threads.add(self)

    def add(self, undo: Callable[[], object], ttl_ms: int) -> None:
        """Call ``undo`` on the thread until it raises no LockError."""
        if self._pid != os.getpid():
            self._reset()  # the jobs are those of the parent
        self._jobs.append((undo, pauses(ttl_ms)))
        if self.is_running:
            return
        self.is_running = True
        try:
            run_in_thread(self._run)
        except RuntimeError:  # no thread available: the next undo tries again
            self.is_running = False

    def drop(self) -> None:
        """Drop all undos, except the one that is being executed."""
        self._jobs: deque[tuple[Callable[[], object], Pauses]] = deque(maxlen=MAX_PENDING)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.drop()
        self.is_running = self.is_undoing = False

    def _run(self) -> None:
        failures = 0
        while True:
            jobs = self._jobs  # another object after ``drop``
            try:
                undo, pause_of = jobs.popleft()
            except IndexError:
                self.is_running = False
                if not self._jobs:  # else one was added before the line above
                    return
                self.is_running = True
                continue
            pause = pause_of(failures)
            if pause is None:
                continue
            time.sleep(pause)
            self.is_undoing = True
            try:
                if jobs is self._jobs:
                    undo()
                failures = 0
            except LockError:
                failures += 1
                jobs.append((undo, pause_of))
            except BaseException:
                self.is_running = False  # the next undo starts again
                raise
            finally:
                self.is_undoing = False


_undo_threads: Final[weakref.WeakSet[UndoThread]] = weakref.WeakSet()


def drop_undos() -> None:
    """Drop the undos of all backends, and wait for those that are being executed.

    For tests that share a server: an undo of one test would write into the tables of the next.
    """
    threads = list(_undo_threads)
    for thread in threads:
        thread.drop()
    deadline = time.monotonic() + DROP_TIMEOUT_S
    while any(thread.is_undoing for thread in threads) and time.monotonic() < deadline:
        time.sleep(0.001)


def is_doubtful(error: BaseException) -> bool:
    """Whether the server may have executed a request that failed with this error."""
    return isinstance(error, LockError) and error.code in (
        "Aborted",
        "NetworkTimeout",
        "ServiceUnavailable",
    )
