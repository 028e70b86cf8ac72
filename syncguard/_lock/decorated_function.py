"""Checks of a function that ``lock()`` decorates, and of what it returns.

The body of a coroutine or generator runs after the call that made it. Then the lock is released
already, so both are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final, TypeVar

from syncguard.errors import invalid_argument

R = TypeVar("R")

_UNFINISHED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)
_GENERATOR: Final = (
    "cannot lock a generator function: its body runs after the call returns; use `with lock()`"
    " inside it"
)
_ASYNC: Final = "syncguard.lock decorates plain functions; for async def use syncguard.aio.lock"
_PLAIN: Final = "syncguard.aio.lock decorates async def; for plain functions use syncguard.lock"
_HIDDEN: Final = "another decorator wraps an async def here: put syncguard.aio.lock below it"
_NOT_AWAITED: Final = "the function returned a coroutine that did not run: await it in the function"


def check_decorated(function: Callable[..., object], *, wants_async: bool) -> None:
    """Refuse a function whose body would run after the lock is released."""
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise invalid_argument(_GENERATOR)
    is_async = _is(inspect.iscoroutinefunction, function)
    if is_async and not wants_async:
        raise invalid_argument(_ASYNC)
    if wants_async and not is_async:
        hidden = inspect.iscoroutinefunction(inspect.unwrap(function))
        raise invalid_argument(_HIDDEN if hidden else _PLAIN)


def checked_result(result: R, *, wants_async: bool) -> R:
    """Return the result of a decorated function. Raises if it is a coroutine or a generator.

    A plain decorator can hide an ``async def`` or a generator from ``check_decorated``. Some
    decorators, such as asgiref's ``async_to_sync``, run what they wrap, and others do not: only
    the result shows which.
    """
    if not isinstance(result, _UNFINISHED):
        return result
    if not isinstance(result, AsyncGeneratorType):  # closing that one needs an await
        result.close()  # else Python warns that it was never awaited
    if not isinstance(result, CoroutineType):
        raise invalid_argument(_GENERATOR)
    raise invalid_argument(_NOT_AWAITED if wants_async else _ASYNC)


def _is(kind: Callable[[object], bool], function: object) -> bool:
    """Whether a function is of a kind, or a callable object whose ``__call__`` is."""
    while isinstance(function, partial):
        function = function.func
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004
