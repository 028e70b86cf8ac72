"""One call of a locked function: which task it belongs to, and how it was called.

Celery keeps the running tasks on a stack, and each task its requests on another; only this module
reads them. A call is *in a worker*, *eager*, or *direct*: only the first can be republished.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from celery import _state
from celery._state import get_current_app

if TYPE_CHECKING:
    from celery import Celery
    from celery.app.task import Context, Task

_task_stack: Any = cast("Any", _state)._task_stack  # not in the stubs

MARK: Final = "__syncguard__"
"""The attribute of a locked function that holds its ``LockedFunction``."""


@dataclass(slots=True)  # not frozen: that would double the time to make one
class Call:
    """A call of a locked function."""

    name: str
    task: Task[..., Any] | None
    request: Context | None
    app: Celery

    @property
    def task_id(self) -> str | None:
        return None if self.request is None else self.request.id

    @property
    def in_worker(self) -> bool:
        """Whether the call comes from a message, which can be published again."""
        request = self.request
        return request is not None and not (request.called_directly or request.is_eager)


def call_of(locked: object, name: str, app: Celery | None) -> Call:
    """The current call: of the innermost task, if that task runs this locked function."""
    task = _task_stack.top
    if task is None or not _includes(locked_function(task), locked):
        return Call(name, None, None, app or get_current_app())
    return Call(task.name, task, task.request_stack.top, task.app)


def locked_function(task: object) -> Any:
    """The ``LockedFunction`` of this task, or None. If it has several locks, the outermost."""
    function = getattr(task, "__wrapped__", None) or getattr(task, "run", None)
    return getattr(function, MARK, None)


def is_bound(task: object) -> bool:
    """Whether the task's function takes the task as its first argument.

    ``run`` alone does not show it: autoretry and integrations replace it with their own functions.
    """
    function = getattr(task, "__wrapped__", None) or getattr(task, "run", None)
    return getattr(function, "__self__", None) is not None


def _includes(outermost: Any, locked: object) -> bool:
    while outermost is not None and outermost is not locked:
        outermost = getattr(outermost.function, MARK, None)
    return outermost is not None


def running_requests() -> list[Context]:
    """The requests of the tasks in this call stack, innermost first."""
    if _task_stack.top is None:
        return []
    requests = []
    seen: Counter[int] = Counter()
    for task in reversed(_task_stack.stack):
        own = task.request_stack.stack
        depth = seen[id(task)] = seen[id(task)] + 1
        if depth <= len(own):
            requests.append(own[-depth])
    return requests


def is_republish(name: str, task_id: str | None) -> bool:
    """Whether this publishes a running task again: a retry, or after contention."""
    if task_id is None or _task_stack.top is None:
        return False
    return any(task.name == name and task.request.id == task_id for task in _task_stack.stack)
