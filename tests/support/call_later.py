"""Something that another thread does in a moment, and has done before the test goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def call_later(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Act in so many seconds, while the block runs. Leaving waits for the end of it.

    A lock wakes its waiter before its release has returned: without waiting, the test would end,
    and close the client under the thread that still reads the reply.
    """
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()
