"""Telling that a lock was lost: run the holder's callback where it can block nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from syncguard._lock.callbacks import run_in_background
from syncguard._lock.held import Held

_logger = logging.getLogger("syncguard")


def announce(held: Held) -> None:
    """For blocking code: on a thread of its own, because a slow callback must not delay others."""
    on_lost = held.lose()
    if on_lost is None:
        return
    try:
        threading.Thread(target=_call, args=(on_lost,), name="syncguard-lost", daemon=True).start()
    except RuntimeError:  # no more threads to be had: better here than not at all
        _call(on_lost)


def announce_async(held: Held) -> None:
    """For asyncio: in the loop; what an ``async def`` callback returns runs as a task."""
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
    # Its class only: the callback was given the lock, and its text may show the lock's id.
    _logger.error("the on_lost callback failed with %s", type(error).__name__)
