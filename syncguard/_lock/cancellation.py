"""Cancellation in asyncio: a cancelled task must not leave a lock held.

A request that was sent to a server cannot be withdrawn. So a mutation runs to its end, in a task
that the caller's cancellation does not cancel. The caller waits until that task has finished,
undoes the mutation if needed, and only then raises the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from syncguard._lock.background_tasks import keep

T = TypeVar("T")

GRACE_S: Final = 5.0
"""How long a cancelled caller waits at most for a server that does not answer."""


async def settle(operation: Coroutine[Any, Any, T], *, begins_at_once: bool = False) -> T:
    """Run the operation to its end, even if the caller is cancelled; then raise CancelledError.

    ``begins_at_once`` runs it in the caller's task, and moves it to a task of its own only if the
    caller is cancelled: quicker, but not for operations with ``asyncio.timeout`` or ``wait_for``,
    which cancel the task in which they began.
    """
    if begins_at_once:
        return await _in_callers_task(operation)
    task = asyncio.ensure_future(operation)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await finished(task)
        raise


async def _in_callers_task(operation: Coroutine[Any, Any, T]) -> T:
    try:
        awaited = operation.send(None)
        while isinstance(awaited, asyncio.Future):
            # Not awaited itself: cancelling the caller would cancel it.
            done = asyncio.get_running_loop().create_future()
            wake = partial(_set_done, done)
            awaited._asyncio_future_blocking = False  # as a task does with what it waits for
            awaited.add_done_callback(wake)
            try:
                await done
            except asyncio.CancelledError:
                awaited.remove_done_callback(wake)
                awaited._asyncio_future_blocking = True
                await finished(asyncio.ensure_future(_rest(operation, awaited)))
                raise
            awaited = operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    # It waits for something else, such as asyncio.sleep(0).
    return await settle(_rest(operation, awaited))


def _set_done(done: asyncio.Future[None], _awaited: object) -> None:
    if not done.done():
        done.set_result(None)


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


class Outcome(Generic[T]):
    """The result of an operation, or its error."""

    def __init__(self, result: T | None, error: Exception | None) -> None:
        self._result = result
        self._error = error

    def get(self) -> T:
        """To be called once. Afterwards it has no reference to the error, which would be a cycle:
        the traceback of the error refers to the callers, and they to this object."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return cast("T", self._result)
        finally:
            del error


def outcome_task(operation: Coroutine[Any, Any, T]) -> asyncio.Task[Outcome[T]]:
    """A task that never ends with an error, for an operation that its caller may abandon.

    asyncio logs an error that nobody reads, and ``asyncio.run`` logs that of a task which it had to
    cancel: redis-py sometimes swallows a cancellation, and the operation fails later.
    """

    async def outcome() -> Outcome[T]:
        try:
            return Outcome(await operation, None)
        except Exception as error:
            return Outcome(None, error)

    task = asyncio.ensure_future(outcome())
    task.add_done_callback(lambda _: operation.close())  # if the task was cancelled before it began
    return task


def continue_in_background(task: asyncio.Task[Any]) -> None:
    """Let a task end although nobody awaits it."""
    keep(task)
    task.add_done_callback(_ignore_outcome)


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
