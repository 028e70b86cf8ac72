"""Options of a locked task that are likely misspelt: refused, with the right spelling.

Celery makes an attribute of every option that it does not know, so ``on_contetion="skip"`` would
pass silently. What the task's class knows is never refused. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final

from celery import Task

from syncguard.backend import invalid_argument
from syncguard_celery.options import LockOptions

if TYPE_CHECKING:
    from celery import Celery

_OURS: Final = ("key", "app", *(field.name for field in fields(LockOptions)))
_CLOSE: Final = 0.75
_UNIT: Final = re.compile(r"_(?:ms|s|secs?|seconds)$")


def refuse_misspelt(task_options: Mapping[str, Any], app: Celery | None) -> None:
    """Raise InvalidArgument for an option that is close to one of ours and not Celery's."""
    for name in task_options:
        meant = closest(name, _OURS)
        if meant is not None and not _is_known(name, task_options, app):
            raise invalid_argument(
                f"{name} is no option of a locked task, nor of a Celery task: did you mean {meant}?"
            )


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one is likely meant to be, with or without its unit."""
    likeness, meant = max((_likeness(name, one), one) for one in known)
    return meant if likeness >= _CLOSE else None


def _likeness(name: str, known: str) -> float:
    bare = SequenceMatcher(None, _UNIT.sub("", name), _UNIT.sub("", known)).ratio()
    return max(bare, SequenceMatcher(None, name, known).ratio())


def _is_known(name: str, task_options: Mapping[str, Any], app: Celery | None) -> bool:
    base = task_options.get("base") or (Task if app is None else app.Task)
    return hasattr(base, name)
