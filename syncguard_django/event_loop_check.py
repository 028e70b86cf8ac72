"""Refuses a blocking lock in the thread of an event loop, as Django's ORM refuses queries.

While ``lock()`` waits there, every other request of the process waits too, without any message.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from django.core.exceptions import SynchronousOnlyOperation

_REFUSED: Final = (
    "lock() would block the event loop and every other request in it: use `async with alock()`,"
    " or call the code that uses lock() with sync_to_async."
)


def refuse_in_event_loop() -> None:
    """Raise SynchronousOnlyOperation in an event loop, unless DJANGO_ALLOW_ASYNC_UNSAFE is set."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(_REFUSED)
