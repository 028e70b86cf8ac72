"""Clears the local variables of our frames in the traceback of an error that leaves SyncGuard.

Django's debug page, Sentry and pytest print the local variables of every frame. Ours, and those of
the client libraries below them, hold raw keys, lock ids, packed commands and passwords. Clearing
them when an error leaves a public function costs nothing while no error is raised, and it needs no
care in the code below. Frames of the caller are never touched.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
E = TypeVar("E", bound=BaseException)

_OURS: Final = frozenset({"syncguard", "syncguard_django", "syncguard_celery"})
_PACKAGES: Final = _OURS | {"redis", "psycopg", "psycopg_pool"}
_SUSPENDABLE: Final = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def clear_locals(error: BaseException, finished: TracebackType | None = None) -> None:
    """Clear our finished frames in the tracebacks of an error and of what caused it.

    ``finished``: the step of a coroutine that is known to have ended.
    """
    for each in _chain(error):
        step = each.__traceback__
        while step is not None:
            if _is_ours(step) and (step is finished or _may_clear(step.tb_frame)):
                with contextlib.suppress(RuntimeError):  # it still runs
                    step.tb_frame.clear()
            step = step.tb_next


def returnable(error: E) -> E:
    """An error that is returned and not raised, without the frames that it has passed."""
    clear_locals(error)
    return error.with_traceback(None)


def _may_clear(frame: FrameType) -> bool:
    """Clearing a suspended coroutine would end it.

    One of ours may be suspended, such as one that reads replies for others and handed its error
    to this caller. Those of the client libraries have ended.
    """
    is_suspendable = frame.f_code.co_flags & _SUSPENDABLE
    return not is_suspendable or _package_of(frame) not in _OURS


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        # Where a traceback begins in a frame of others, the exception is one that the caller was
        # handling: not ours.
        if each is None or id(each) in seen or not (each is error or _is_ours(each.__traceback__)):
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]


def _is_ours(step: TracebackType | None) -> bool:
    if step is None:
        return False
    return _package_of(step.tb_frame) in _PACKAGES


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def hides_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its errors show neither its arguments nor what is below it.

    Not for a function that acquires a lock on a thread: an interrupt between its return and the
    return of the wrapper would lose the result. Such a function calls ``clear_locals`` itself.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except BaseException as error:
                args, kwargs = (), {}
                clear_locals(error, error.__traceback__ and error.__traceback__.tb_next)
                raise

        return wrapped_async  # type: ignore[return-value]

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            args, kwargs = (), {}  # type: ignore[assignment]
            clear_locals(error)
            raise

    return wrapped


def hides_arguments_of_methods(*, inline: frozenset[str] = frozenset()) -> Callable[[C], C]:
    """Decorate a class: ``hides_arguments`` for its public methods, except those in ``inline``."""

    def decorate(cls: C) -> C:
        for name, value in list(vars(cls).items()):
            if inspect.isfunction(value) and not name.startswith("_") and name not in inline:
                setattr(cls, name, hides_arguments(value))
            elif isinstance(value, classmethod) and name == "from_url":
                setattr(cls, name, classmethod(hides_arguments(value.__func__)))
        return cls

    return decorate
