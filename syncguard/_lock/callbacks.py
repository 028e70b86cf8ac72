"""Users' callbacks that may be ``async def``: run them in the background."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from syncguard._lock.background_tasks import keep


def run_in_background(result: object, log_error: Callable[[BaseException], object]) -> None:
    """Run what a callback returned as a task of the running loop, if it is awaitable.

    ``log_error`` is called with what it raises. Raises RuntimeError if no loop is running.
    """
    if not inspect.isawaitable(result):
        return

    async def run() -> None:
        try:
            await result
        except (Exception, SystemExit) as error:  # SystemExit would end the event loop
            log_error(error)

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise
    keep(loop.create_task(run()))
