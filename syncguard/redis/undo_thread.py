"""Undoes acquires and adopts that got no reply, on one daemon thread a process, asyncio's too.

The request may lie in the socket of a server that hangs, and runs when the server continues. Then
the lock would stay held until its TTL ends, without a holder. The undo releases it, if it has the
id of that request, and leaves a tombstone, so that a request which arrives later is refused. So one
answered undo is final.

The thread starts before the first acquire of a process, never after a time-out, and not in the
caller's thread: on CPython 3.10 and 3.11, an exception that another thread sends to a thread inside
``Thread.start`` can leave it waiting for ever. A forked child begins without jobs: they are the
parent's.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from syncguard.redis import spent_ids
from syncguard.redis.script_calls import Call

_logger = logging.getLogger("syncguard")

MAX_PENDING: Final = 1_000
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0
MIN_DURATION_S: Final = 60.0
MAX_DURATION_S: Final = 3_600.0
"""An undo is tried for the lock's TTL, within these limits: the TTL of a lock that is granted late
begins when the server continues."""

TRY_TIMEOUT_S: Final = 1.0
EXIT_TIMEOUT_S: Final = 0.2


class Target(Hashable, Protocol):
    """A server to send undos to. Equal targets share one connection."""

    def run(
        self, calls: Sequence[Call[bool]], timeout_s: float, answered: Callable[[str], None]
    ) -> None:
        """Run the calls on a new connection. Calls ``answered`` with each answered lock id.

        Raises the first fault. The time-out is for one read or write.
        """
        ...


class Undo:
    """One id to undo."""

    __slots__ = ("_pause_s", "call", "due", "find_target", "lock_id", "tried", "until")

    def __init__(self, call: Call[bool], find_target: Callable[[], Target], ttl_ms: int) -> None:
        assert call.lock_id is not None
        self.lock_id = call.lock_id
        self.call = call
        self.find_target = find_target
        """Called before each try: on a cluster, another node may have the lock meanwhile."""
        self.due = time.monotonic()
        self.until = self.due + min(max(ttl_ms / 1000, MIN_DURATION_S), MAX_DURATION_S)
        self.tried = threading.Event()
        """Set after the first try, whether it was answered or not."""
        self._pause_s = FIRST_PAUSE_S

    def postpone(self) -> None:
        self.due = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)


class UndoThread:
    """The process's undo thread and its jobs. Callers only enqueue, and never block."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Begin without jobs and without a thread."""
        self.is_running = False
        self._jobs: dict[str, Undo] = {}
        # Acquired, except from a ring to the end of the next sleep. Not a queue: the queues of
        # CPython 3.10 and 3.11 may wait for ever if their time-out is about a microsecond.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._exits = False
        self._tried_at_exit = threading.Event()
        self._overflow_is_logged = False
        spent_ids.clear()

    # -- for callers --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. If no thread can start, the next acquire tries again."""
        try:
            self.is_running = True  # first: of two callers at once, only one should start a thread
            # A thread that starts the thread: the caller does not wait in Thread.start.
            _thread.start_new_thread(self._start_thread, ())
        except BaseException as error:
            self.is_running = False  # after an interrupt it may run nevertheless; two do no harm
            if not isinstance(error, RuntimeError):
                raise

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="syncguard-undo", daemon=True).start()
        except RuntimeError:
            self.is_running = False

    def enqueue(self, job: Undo, lock_name: str) -> Undo:
        """Enqueue a job, and return it; or the job that this lock id has already."""
        known = self._jobs.get(job.lock_id)
        if known is None:
            spent_ids.add(job.lock_id, lock_name)
            known = self._jobs[job.lock_id] = job
        self.ring()  # also for one that is known: an interrupt may have come before its ring
        return known

    def ring(self) -> None:
        """End the sleep of the thread, or its next one."""
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._bell.release()

    @property
    def pending(self) -> int:
        """The number of jobs."""
        return len(self._jobs)

    def drop_jobs(self) -> None:
        for lock_id in list(self._jobs):
            self._end(lock_id)

    def try_once_at_exit(self) -> None:
        if self.is_running and self._jobs:
            self._exits = True
            self.ring()
            self._tried_at_exit.wait(EXIT_TIMEOUT_S)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._sleep()
                    self._drop_oldest()
                    self._try_due()
                except Exception:
                    _logger.exception("Unexpected error in the undo thread; continuing.")
                    time.sleep(FIRST_PAUSE_S)
        finally:
            self.is_running = False  # something ended the thread: the next acquire starts another

    def _sleep(self) -> None:
        """Until a job is due, or one was added."""
        dues = [job.due for job in list(self._jobs.values())]
        self._bell.acquire(timeout=max(0.0, min(dues) - time.monotonic()) if dues else -1)

    def _drop_oldest(self) -> None:
        too_many = len(self._jobs) - MAX_PENDING
        if too_many > 0 and not self._overflow_is_logged:
            self._overflow_is_logged = True
            _logger.warning(
                "More than %d acquires that got no reply wait to be undone; dropping the oldest."
                " Their locks may stay held until their TTL ends.",
                MAX_PENDING,
            )
        for lock_id in list(self._jobs)[: max(0, too_many)]:
            self._end(lock_id)
        self._overflow_is_logged = self._overflow_is_logged and bool(self._jobs)

    def _try_due(self) -> None:
        exits, now = self._exits, time.monotonic()
        by_target: dict[Target, list[Undo]] = {}
        for job in list(self._jobs.values()):
            if job.due <= now or exits:
                try:
                    by_target.setdefault(job.find_target(), []).append(job)
                except Exception as error:
                    self._failed([job], error)
        timeout_s = EXIT_TIMEOUT_S if exits else TRY_TIMEOUT_S
        for target, jobs in by_target.items():
            try:
                target.run([job.call for job in jobs], timeout_s, self._end)
            except Exception as error:
                self._failed(jobs, error)
        if exits:
            self._tried_at_exit.set()

    def _failed(self, jobs: list[Undo], error: Exception) -> None:
        """Postpone the jobs that were not answered before the error."""
        for job in jobs:
            if job.lock_id not in self._jobs:
                continue
            job.postpone()
            job.tried.set()
            if job.due > job.until:
                self._end(job.lock_id)
                # Only the class: the text of an error may contain what was sent.
                _logger.warning(
                    "Could not undo an acquire that got no reply (%s); its lock may stay held until"
                    " its TTL ends.",
                    type(error).__name__,
                )

    def _end(self, lock_id: str) -> None:
        job = self._jobs.pop(lock_id, None)
        spent_ids.discard(lock_id)
        if job is not None:
            job.tried.set()


undo_thread: Final = UndoThread()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=undo_thread.reset_after_fork)
atexit.register(undo_thread.try_once_at_exit)
