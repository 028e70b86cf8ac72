"""Auto-extend for blocking code: one thread per process for all locks and backends.

This module is what holders call: they enqueue a registration and never block. The thread is in
``heartbeat_thread``. After a fork the child starts without registrations: the parent holds the
locks. The thread is a daemon, and nothing stops it at exit: an exit handler may hold a lock.
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
from syncguard._lock.background_threads import start_ahead
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms

_MANY_REGISTRATIONS: Final = 256
"""Wake the thread once this many registrations are queued."""


class Heartbeat:
    """The process's heartbeat. Use the module's ``watch`` and ``unwatch``."""

    def __init__(self) -> None:
        self.thread: HeartbeatThread | None = None
        # Re-entrant: a signal handler may need a heartbeat while one is being started. Then there
        # are two threads for a while; the one that is not stored here ends when it is idle.
        self._starting = threading.RLock()

    def register(self, watch: Watch) -> None:
        """Register a new lock. If the thread has ended meanwhile, start another one."""
        thread = self.thread
        if thread is not None:
            thread.registrations.append(weakref.ref(watch))
        if thread is None or thread.has_ended:
            thread = self._started(watch)
        if (
            watch.beat.when_ms < thread.sleeps_until_ms
            or len(thread.registrations) > _MANY_REGISTRATIONS
        ):
            thread.wake()

    def _started(self, watch: Watch) -> HeartbeatThread:
        with self._starting:
            thread = self.thread
            if thread is not None:
                thread.registrations.append(weakref.ref(watch))
            if thread is None or thread.has_ended:
                thread = self._successor(thread)
                thread.registrations.append(weakref.ref(watch))
                # Here no task is interrupted yet. Later the holder may need a background thread.
                start_ahead()
                thread.start()
                self.thread = thread
            return thread

    def _successor(self, ended: HeartbeatThread | None) -> HeartbeatThread:
        thread = HeartbeatThread(self._replace)
        if ended is not None:
            thread.take_over(ended)
        return thread

    def _replace(self, killed: HeartbeatThread) -> None:
        """Called by a thread that was killed: its locks go on with another one."""
        with self._starting:
            if self.thread is killed:
                thread = self._successor(killed)
                thread.start()
                self.thread = thread

    def close_inherited_sockets(self) -> None:
        if self.thread is not None:
            self.thread.close_inherited_sockets()


_heartbeat = Heartbeat()


def watch(
    held: Held,
    backend: LockBackend,
    ttl_ms: int,
    *,
    renews: bool = True,
    max_hold_ms: int | None = None,
) -> Watch:
    """Extend a lock until ``unwatch``; ``renews=False`` only detects that it is lost.

    Extending also stops when the returned Watch is garbage-collected: an interrupted holder may
    never call ``unwatch``.
    """
    sent_at_ms = held.deadline_ms - ttl_ms
    watched = Watch(
        Beat(held, None, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms), backend
    )
    _heartbeat.register(watched)
    return watched


def unwatch(watched: Watch) -> None:
    """Stop extending. A request that was sent already cannot bring a released lock back."""
    watched.beat.over = True


def settle(watched: Watch) -> None:
    """After ``unwatch``: wait for a sent extension, which would overwrite the next TTL."""
    until_ms = holder_clock_ms() + answer_timeout_ms([watched.beat])
    while watched.beat.sending and holder_clock_ms() < until_ms:
        time.sleep(0.001)


def _reset_after_fork() -> None:
    global _heartbeat
    inherited, _heartbeat = _heartbeat, Heartbeat()
    inherited.close_inherited_sockets()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
