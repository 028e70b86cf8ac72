"""Callbacks of users that may be ``async def``: letting them run where nobody waits for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from syncguard._lock.background import keep


def run_in_background(result: object, complain: Callable[[Exception], object]) -> None:
    """Let what a callback returned run in the loop, if it can be awaited.

    ``complain`` is told what it raises. Raises RuntimeError where no loop runs.
    """
    if not inspect.isawaitable(result):
        return

    async def run() -> None:
        try:
            await result
        except Exception as error:
            complain(error)

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that nobody awaited it
        raise
    keep(loop.create_task(run()))
