"""Helpers for tests of locked tasks: run them without locks, and check their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from syncguard_celery.disabled_locks import DisabledLocks
from syncguard_celery.locked_function import LockedFunction
from syncguard_celery.task_call import locked_function

if TYPE_CHECKING:
    from celery.app.task import Task

__all__ = ["assert_locks", "assert_runs_unlocked", "lock_key", "unlocked"]


def unlocked() -> DisabledLocks:
    """Run locked tasks without their locks, in this process; no backend is needed.

    For a ``with`` block or, as a decorator, for a function. A task still has a fence, of 15 digits
    and larger than the fences before: ``current_fence()`` and ``current_lock()`` work as usual.
    """
    return DisabledLocks()


def lock_key(task: Task[..., Any], /, *args: object, **kwargs: object) -> str | None:
    """The key that a call with these arguments would lock; None if it would run unlocked."""
    locked = locked_function(task)
    if not isinstance(locked, LockedFunction):
        raise AssertionError(f"{_name(task)} is not a locked task")
    return locked.key_for_task(task, args, kwargs)


def assert_locks(task: Task[..., Any], key: str, /, *args: object, **kwargs: object) -> None:
    """Assert that a call with these arguments would lock this key."""
    actual = lock_key(task, *args, **kwargs)
    if actual != key:
        raise AssertionError(f"{_name(task)} would lock {actual!r}, not {key!r}")


def assert_runs_unlocked(task: Task[..., Any], /, *args: object, **kwargs: object) -> None:
    """Assert that a call with these arguments would acquire no lock."""
    if locked_function(task) is None:
        return
    actual = lock_key(task, *args, **kwargs)
    if actual is not None:
        raise AssertionError(f"{_name(task)} would lock {actual!r}")


def _name(task: object) -> str:
    return getattr(task, "name", None) or repr(task)
