"""Daemon threads for work that a caller must not wait for, or only for a limited time.

One thread always waits for the next job. When it gets one, it first starts another thread that
waits. So no caller calls ``Thread.start()``, which waits for the new thread: on CPython 3.10 and
3.11 an asynchronous exception that is sent to a caller inside of it, such as ``LockLost`` to a
Celery task, reaches the new thread instead, and the caller waits for ever.

Callers never block, and may be interrupted at any line: they only put a job into a queue.
"""

from __future__ import annotations

import _thread
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Final

_logger = logging.getLogger("syncguard")

_IDLE_S: Final = 5.0
"""A thread ends after this time without a job, unless it is the last one that waits."""


class BackgroundThreads:
    """The threads of one process. Use the module's functions."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._guard = threading.Lock()  # only background threads acquire it
        self._waiting = 0
        self.is_started = False

    def start_ahead(self) -> None:
        """Start the first thread, unless there is one. Raises RuntimeError if none is available."""
        if not self.is_started:
            # A thread that starts the thread: nobody waits for this one. If an exception for the
            # caller reaches it, the next call starts another.
            _thread.start_new_thread(self._start_thread, ())

    def run(self, job: Callable[[], object]) -> None:
        """Enqueue a job. Raises RuntimeError if no thread is available."""
        self.start_ahead()
        self._jobs.put(job)

    def _start_thread(self) -> None:
        with self._guard:
            self._waiting += 1
        thread = threading.Thread(target=self._run, name="syncguard-background", daemon=True)
        try:
            thread.start()
            self.is_started = True
        except RuntimeError:  # none available: the job waits for a thread that has ended its own
            with self._guard:
                self._waiting -= 1

    def _run(self) -> None:
        waits = True
        try:
            while True:
                try:
                    # CPython 3.10 may wait longer, for the next job, if another thread got one.
                    job = self._jobs.get(timeout=_IDLE_S)
                except queue.Empty:
                    if self._is_spare():
                        return
                    continue
                waits = False
                if self._leave_waiting() == 0:
                    self._start_thread()
                _call(job)
                del job  # it may keep a lock alive
                with self._guard:
                    self._waiting += 1
                waits = True
        except BaseException as error:
            # The job raised SystemExit, or gevent killed this greenlet.
            if (self._leave_waiting() if waits else self._waiting) == 0:
                self.is_started = False
                self._start_thread()
            if not isinstance(error, SystemExit):
                raise

    def _leave_waiting(self) -> int:
        with self._guard:
            self._waiting -= 1
            return self._waiting

    def _is_spare(self) -> bool:
        """Whether another thread waits: then this one ends."""
        with self._guard:
            if self._waiting <= 1:
                return False
            self._waiting -= 1
            return True


def _call(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as error:
        # Only the class: the text may contain a key or a lock id.
        _logger.error("A background job failed with %s.", type(error).__name__)


_threads = BackgroundThreads()


def start_ahead() -> None:
    """Start the first thread of this process, unless there is one."""
    _threads.start_ahead()


def run_in_thread(job: Callable[[], object]) -> None:
    """Run a job soon, on a background thread. Raises RuntimeError if no thread is available."""
    _threads.run(job)


def _reset_after_fork() -> None:
    global _threads
    _threads = BackgroundThreads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
