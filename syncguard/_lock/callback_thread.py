"""A thread for users' callbacks, which may be slow: the heartbeat thread must not wait for them.

One daemon thread. It starts with the first callback and ends when it was idle for a while. The
heartbeat only puts callbacks into a queue, which never blocks.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final

_IDLE_S: Final = 5.0


class CallbackThread:
    """Runs callbacks one after the other, in the order in which they were enqueued."""

    def __init__(self) -> None:
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def run_on_callback_thread(self, callback: Callable[[], object]) -> None:
        """Enqueue a callback. It must not raise."""
        self._callbacks.put(callback)
        with self._guard:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="syncguard-callbacks", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                callback = self._callbacks.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._guard:
                    if self._callbacks.empty():
                        self._thread = None
                        return
                continue
            callback()


_callback_thread = CallbackThread()


def run_on_callback_thread(callback: Callable[[], object]) -> None:
    """Enqueue a callback for the process's callback thread. It must not raise."""
    _callback_thread.run_on_callback_thread(callback)


def _reset_after_fork() -> None:
    global _callback_thread
    _callback_thread = CallbackThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
