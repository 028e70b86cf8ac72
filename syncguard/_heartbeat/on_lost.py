"""Call the holder's ``on_lost`` where it cannot block the heartbeat, in the context of its lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from syncguard._lock.callback_queue import CallbackQueue
from syncguard._lock.callbacks import run_in_background
from syncguard._lock.held import Held

_logger = logging.getLogger("syncguard")

THREADS: Final = 16
"""So many callbacks of blocking code run at once. If all of these are slow, the next one waits."""

_callbacks: Final = CallbackQueue(THREADS)


def announce(held: Held) -> None:
    """For blocking code: on a background thread, because a slow callback must not delay others."""
    lost = held.lose()
    if lost is None:
        return
    on_lost, context = lost
    run: Callable[..., Any] = context.run
    _callbacks.put(partial(run, _call, on_lost))


def announce_async(held: Held) -> None:
    """For asyncio: now, in the loop; an ``async def`` callback runs as a task."""
    lost = held.lose()
    if lost is not None:
        on_lost, context = lost
        context.run(_call_async, on_lost)


def announce_soon(held: Held) -> None:
    """For the heartbeat of asyncio: called by the loop, so that no callback disturbs another."""
    lost = held.lose()
    if lost is not None:
        on_lost, context = lost
        asyncio.get_running_loop().call_soon(_call_async, on_lost, context=context)


def _call_async(on_lost: Callable[[], object]) -> None:
    run_in_background(_call(on_lost), _log)


def _call(on_lost: Callable[[], object]) -> object:
    try:
        return on_lost()
    except Exception as error:
        _log(error)
        return None


def _log(error: BaseException) -> None:
    # Only the class: the text may contain the lock id, which the callback got.
    _logger.error("The on_lost callback failed with %s.", type(error).__name__)
