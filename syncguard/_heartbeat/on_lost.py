"""Call the holder's ``on_lost`` where it cannot block the heartbeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from syncguard._lock.callbacks import run_in_background
from syncguard._lock.held import Held

_logger = logging.getLogger("syncguard")


def announce(held: Held) -> None:
    """For blocking code: on a new thread, because a slow callback must not delay others."""
    on_lost = held.lose()
    if on_lost is None:
        return
    try:
        threading.Thread(target=_call, args=(on_lost,), name="syncguard-lost", daemon=True).start()
    except RuntimeError:  # no thread available: call it here
        _call(on_lost)


def announce_async(held: Held) -> None:
    """For asyncio: in the loop; an ``async def`` callback runs as a task."""
    on_lost = held.lose()
    if on_lost is None:
        return
    run_in_background(_call(on_lost), _log)


def _call(on_lost: Callable[[], object]) -> object:
    try:
        return on_lost()
    except Exception as error:
        _log(error)
        return None


def _log(error: Exception) -> None:
    # Only the class: the text may contain the lock id, which the callback got.
    _logger.error("The on_lost callback failed with %s.", type(error).__name__)
