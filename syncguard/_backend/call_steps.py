"""Runs an operation of several calls: a generator that yields calls and receives their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

CallT = TypeVar("CallT")
T = TypeVar("T")


def run_steps(run: Callable[[CallT], object], steps: Generator[CallT, Any, T]) -> T:
    """Run the calls one after the other. Returns what the generator returns."""
    result: object = None
    while True:
        try:
            call = steps.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        result = run(call)


async def run_steps_async(
    run: Callable[[CallT], Awaitable[object]], steps: Generator[CallT, Any, T]
) -> T:
    """The same for asyncio."""
    result: object = None
    while True:
        try:
            call = steps.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        result = await run(call)
