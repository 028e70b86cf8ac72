"""Call a function later, on another thread, and wait for it at the end of the block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def call_later(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` after this many seconds, while the block runs. Leaving waits until it returned.

    A release wakes the waiter before it returns: without waiting, the test would end and close
    the client while the other thread still reads the reply.
    """
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()
