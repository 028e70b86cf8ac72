"""Auto-extend for blocking code: one thread per process, whatever the number of locks and backends.

Here is the holders' side. They only leave word and never wait for the thread; what it does with
it is in ``heartbeat_thread``. After a fork the child starts with nothing: the locks it inherited
are its parent's. Nobody stops the thread when a process ends: a handler that runs then may hold a
lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final

from syncguard._backend.required import LockBackend
from syncguard._heartbeat.backend_connection import answer_timeout_ms
from syncguard._heartbeat.heartbeat_thread import HeartbeatThread, Watch
from syncguard._heartbeat.schedule import Beat
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms

_MANY_ARRIVALS: Final = 256
"""Wake the thread once this many registrations are queued."""


class Heartbeat:
    """The process's heartbeat. Use the module's ``watch`` and ``unwatch``."""

    def __init__(self) -> None:
        self.thread: HeartbeatThread | None = None
        # Re-entrant, for a signal handler that needs a heartbeat while one is being started. Then
        # there are two threads for a while, and the one that is forgotten ends when it is idle.
        self._starting = threading.RLock()

    def place(self, watch: Watch) -> None:
        """Leave word of a new lock. What it was left with, a thread may find too late."""
        thread = self.thread
        if thread is not None:
            thread.arrivals.append(weakref.ref(watch))
        if thread is None or thread.has_ended:
            thread = self._started(watch)
        if watch.beat.when_ms < thread.sleeps_until_ms or len(thread.arrivals) > _MANY_ARRIVALS:
            thread.wake()

    def _started(self, watch: Watch) -> HeartbeatThread:
        with self._starting:
            thread = self.thread
            if thread is not None:
                thread.arrivals.append(weakref.ref(watch))
            if thread is None or thread.has_ended:
                thread = HeartbeatThread()
                thread.arrivals.append(weakref.ref(watch))
                thread.start()
                self.thread = thread
            return thread

    def forget(self) -> None:
        if self.thread is not None:
            self.thread.forget()


_heartbeat = Heartbeat()


def watch(
    held: Held,
    backend: LockBackend,
    ttl_ms: int,
    *,
    renews: bool = True,
    max_hold_ms: int | None = None,
) -> Watch:
    """Extend a lock until ``unwatch``; ``renews=False`` only tells when it is lost.

    Only as long as what this returns is referred to: an interrupted holder cannot say goodbye.
    """
    sent_at_ms = held.deadline_ms - ttl_ms
    watched = Watch(
        Beat(held, None, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms), backend
    )
    _heartbeat.place(watched)
    return watched


def unwatch(watched: Watch) -> None:
    """Stop extending. An extension that is under way never resurrects a lock."""
    watched.beat.over = True


def settle(watched: Watch) -> None:
    """Wait, after ``unwatch``, until no extension is under way: it would undo a later one."""
    until_ms = holder_clock_ms() + answer_timeout_ms([watched.beat])
    while watched.beat.sending and holder_clock_ms() < until_ms:
        time.sleep(0.001)


def _start_afresh() -> None:
    global _heartbeat
    inherited, _heartbeat = _heartbeat, Heartbeat()
    inherited.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
