"""Carrying events from the heartbeat's thread to a user's callback, which may be slow.

One daemon thread, started with the first event and gone when none has come for a while. The
heartbeat only puts into its queue, which never blocks.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final

_IDLE_S: Final = 5.0


class Courier:
    """Runs deliveries one after the other, in the order in which they were handed in."""

    def __init__(self) -> None:
        self._deliveries: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def deliver(self, delivery: Callable[[], object]) -> None:
        """Run it soon, elsewhere. It must not raise."""
        self._deliveries.put(delivery)
        with self._guard:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="syncguard-courier", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                delivery = self._deliveries.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._guard:
                    if self._deliveries.empty():
                        self._thread = None
                        return
                continue
            delivery()


_courier = Courier()


def deliver(delivery: Callable[[], object]) -> None:
    """Hand a delivery to the process's courier."""
    _courier.deliver(delivery)


def _start_afresh() -> None:
    global _courier
    _courier = Courier()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
