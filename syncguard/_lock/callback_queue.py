"""Callbacks that may be slow, on a limited number of background threads.

Whoever enqueues one never waits: the heartbeat thread must not, and a thousand locks may be lost
at once. A slow callback takes one of the threads; the others take the next callbacks.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from syncguard._lock.background_threads import run_in_thread


class CallbackQueue:
    """Calls callbacks in the order in which they were enqueued, at most ``limit`` at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.reset_after_fork()
        _queues.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: forget the callbacks, which the parent calls."""
        self._callbacks: deque[Callable[[], object]] = deque()
        self._free: list[None] = [None] * self._limit
        """One entry for each thread that may still be used. Popped and appended: atomic."""

    def put(self, callback: Callable[[], object]) -> None:
        """Enqueue a callback. If no thread is available, it is called here."""
        self._callbacks.append(callback)
        if self._take_a_thread():
            try:
                run_in_thread(self._call_all)
            except RuntimeError:  # no thread available
                self._call_all()

    def _take_a_thread(self) -> bool:
        try:
            self._free.pop()
        except IndexError:
            return False  # the threads that call callbacks now will call this one
        return True

    def _call_all(self) -> None:
        while True:
            try:
                while self._callbacks:
                    self._call_next()
            except BaseException:
                # A callback failed, or raised SystemExit: the others are called on another thread.
                self._free.append(None)
                if self._callbacks and self._take_a_thread():
                    run_in_thread(self._call_all)
                raise
            self._free.append(None)
            # A callback that was enqueued just now may have found no free thread.
            if not self._callbacks or not self._take_a_thread():
                return

    def _call_next(self) -> None:
        try:
            callback = self._callbacks.popleft()
        except IndexError:
            return  # another thread took it
        callback()


_queues: Final[weakref.WeakSet[CallbackQueue]] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for each in _queues:
        each.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
