"""Running a function under its lock.

The task's function is wrapped in a ``try ... finally``: only this runs at every end of a task, in
workers, eager runs, direct calls, ``map`` and ``chunks``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from celery.app.task import Task
from celery.exceptions import Reject

from syncguard import LockLost
from syncguard.backend import invalid_argument
from syncguard.fake_lock import fake_lock
from syncguard.key_templates import Binder, KeySource, key_maker
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import clear_locals
from syncguard_celery.acquire import Acquiring
from syncguard_celery.contention import Skipped, contend
from syncguard_celery.disabled_locks import locks_disabled
from syncguard_celery.interrupt_on_loss import interrupts_disarmed
from syncguard_celery.options import LockOptions
from syncguard_celery.outage import (
    enter_or_republish,
    republish_after_loss,
    runs_again_after_loss,
)
from syncguard_celery.pydantic_keys import KeyOf, validating
from syncguard_celery.release import end_hold, release_after_interrupt
from syncguard_celery.running_calls import Holding, enclosing, innermost, put_innermost
from syncguard_celery.task_call import MARK, call_of, is_bound

if TYPE_CHECKING:
    from celery import Celery

P = ParamSpec("P")
R = TypeVar("R")

_RUN_LATER: Final = (
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)
_RUNS_LATER: Final = (
    "Cannot lock a generator or async function: its body runs after the call returns. "
    "Use `with lock()` inside it."
)


class LockedFunction:
    """A function, its key, and the options of its lock."""

    def __init__(
        self,
        function: Callable[..., object],
        key: KeySource,
        options: LockOptions,
        app: Celery | None = None,
        pydantic: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(function, Task):
            raise invalid_argument(
                "This is already a task: put @locked below @app.task, or use @locked_task alone."
            )
        if any(runs_later(function) for runs_later in _RUN_LATER):
            raise invalid_argument(_RUNS_LATER)
        self.function = function
        self.options = options
        self.pydantic = pydantic
        self._validating: KeyOf | None = None
        self._app = app
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._binder = Binder(function)
        self.key_is_computed = callable(key)
        self._make_key = key_maker(key, self._binder.signature)

    def key_of(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        """The key of a call with these arguments; None if it runs without a lock."""
        return self._make_key(self._binder.bind(args, kwargs))

    def key_for_task(
        self, task: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> str | None:
        """The key for arguments as published, without the ``self`` of a bound task."""
        own = (task,) if is_bound(task) else ()
        return self._key_of_published(task)((*own, *args), kwargs)

    def _key_of_published(self, task: Any) -> KeyOf:
        if self.pydantic is None:
            return self.key_of
        if self._validating is None:
            self._validating = validating(
                self.key_of, self.function, task.app, task.name, self.pydantic
            )
        return self._validating

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function under its lock."""
        if locks_disabled():
            return self._run_unlocked(args, kwargs)
        if self.options.ttl_ms < SHORT_TTL_MS:
            warn_of_short_ttl(self.options.ttl_ms, self.function)
        call = call_of(self, self.name, self._app)
        before = innermost()
        outer = [holding.interrupt for holding in enclosing()] if before else []
        bind = functools.partial(self._binder.bind, args, kwargs)
        acquiring = Acquiring(call, self.options, bind, self._make_key)
        enter = functools.partial(
            enter_or_republish,
            call,
            self.options,
            acquiring.backend,
            functools.partial(acquiring.enter, contend),
            acquiring.unavailable_policy,
        )
        holding: Holding | None = None
        try:
            if outer:
                with interrupts_disarmed(outer):
                    entered = enter()
            else:
                entered = enter()
            if isinstance(entered, Skipped):
                return entered.result
            if entered is None:
                return self.function(*args, **kwargs)
            holding = entered
            return _run_under(holding, self.function, args, kwargs)
        except Exception as error:
            clear_locals(error)
            if holding is not None and runs_again_after_loss(holding, error):
                raise republish_after_loss(holding, error)  # noqa: B904 - it may be the same error
            raise
        finally:
            if acquiring.lock_id is not None and (holding is None or not holding.is_ended):
                put_innermost(before)
                release_after_interrupt(acquiring.block, acquiring.backend, acquiring.lock_id)

    def _run_unlocked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function in a test without locks. It still has a fence."""
        key = self.key_of(args, kwargs)
        with nullcontext() if key is None else fake_lock(key):
            return self.function(*args, **kwargs)


def _run_under(
    holding: Holding,
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> object:
    error: BaseException | None = None
    try:
        put_innermost(holding)
        try:
            holding.interrupt.arm()
            return function(*args, **kwargs)
        finally:
            holding.interrupt.disarm()
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            if holding.outer is None:
                end_hold(holding, error)
            else:
                with interrupts_disarmed(
                    [outer.interrupt for outer in enclosing() if outer is not holding]
                ):
                    end_hold(holding, error)
            holding.end()
        except (LockLost, Reject):  # raised by end_hold itself after the release
            holding.end()
            raise
        finally:
            del error  # a cycle: the traceback holds this frame


def wrap(function: Callable[P, R], locked: LockedFunction) -> Callable[P, R]:
    """The function that Celery calls."""

    @functools.wraps(function)
    def run_locked(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = locked.run(args, kwargs)
        return result

    setattr(run_locked, MARK, locked)
    # Celery reads the parameters without following __wrapped__.
    run_locked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return run_locked
