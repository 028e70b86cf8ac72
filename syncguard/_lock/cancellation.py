"""Cancellation in asyncio: a cancelled task must not leave a lock held.

A request that was sent to a server cannot be withdrawn. So a mutation runs in its own task, which
the caller's cancellation does not cancel. The caller waits until that task has finished, undoes
the mutation if needed, and only then raises the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

from syncguard._lock.background_tasks import keep

T = TypeVar("T")

GRACE_S: Final = 5.0
"""How long a cancelled caller waits at most for a server that does not answer."""


async def settle(operation: Coroutine[Any, Any, T]) -> T:
    """Run the operation to its end, even if the caller is cancelled; then raise CancelledError.

    It begins in the caller's task. It gets a task of its own only if it has to wait: most do not.
    """
    try:
        first = operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    task = asyncio.ensure_future(_rest(operation, first))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await finished(task)
        raise


async def _rest(operation: Coroutine[Any, Any, T], first: object) -> T:
    return await _Begun(operation, first)


class _Begun(Generic[T]):
    """Awaits a coroutine that waits already, for ``first``."""

    def __init__(self, operation: Coroutine[Any, Any, T], first: object) -> None:
        self._operation = operation
        self._first = first

    def __await__(self) -> Generator[object, Any, T]:
        awaited = self._first
        try:
            while True:
                try:
                    value = yield awaited
                except BaseException as error:
                    awaited = self._operation.throw(error)
                else:
                    awaited = self._operation.send(value)
        except StopIteration as done:
            result: T = done.value
            return result


async def finished(task: asyncio.Task[T]) -> bool:
    """Wait for a task, even if cancelled several times. False: it took too long.

    A task that took too long continues in the background.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GRACE_S
    while not task.done():
        left = deadline - loop.time()
        if left <= 0:
            continue_in_background(task)
            return False
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the caller raises the cancellation instead
    return True


def continue_in_background(task: asyncio.Task[Any]) -> None:
    """Let a task end although nobody awaits it."""
    keep(task)
    task.add_done_callback(_ignore_outcome)


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
