"""Cancellation in asyncio: a cancelled task must not leave a lock held.

A request that was sent to a server cannot be withdrawn. So a mutation runs in its own task, which
the caller's cancellation does not cancel. The caller waits until that task has finished, undoes
the mutation if needed, and only then raises the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from syncguard._lock.background_tasks import keep

T = TypeVar("T")

GRACE_S: Final = 5.0
"""How long a cancelled caller waits at most for a server that does not answer."""


async def settle(operation: Coroutine[Any, Any, T]) -> T:
    """Run the operation to its end, even if the caller is cancelled; then raise CancelledError."""
    task = asyncio.ensure_future(operation)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await finished(task)
        raise


async def finished(task: asyncio.Task[T]) -> bool:
    """Wait for a task, even if cancelled several times. False: it took too long.

    A task that took too long continues in the background.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE_S
    while not task.done():
        left = deadline - loop.time()
        if left <= 0:
            keep(task)
            task.add_done_callback(_ignore_outcome)
            return False
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the caller raises the cancellation instead
    return True


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
