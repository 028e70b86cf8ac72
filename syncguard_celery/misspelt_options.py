"""Rejects options of a locked task that are likely misspelt, and suggests the right spelling.

Celery turns every option that it does not know into an attribute, so ``on_contetion="skip"`` would
be ignored silently. An attribute of the task's class is never rejected. No I/O.
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

_LOCK_OPTIONS: Final = ("key", "app", *(field.name for field in fields(LockOptions)))
_MIN_LIKENESS: Final = 0.75
_UNIT: Final = re.compile(r"_(?:ms|s|secs?|seconds)$")


def refuse_misspelt(task_options: Mapping[str, Any], app: Celery | None) -> None:
    """Raise InvalidArgument for an option similar to a lock option and unknown to Celery."""
    for name in task_options:
        suggestion = closest(name, _LOCK_OPTIONS)
        if suggestion is not None and not _is_known(name, task_options, app):
            raise invalid_argument(
                f"{name} is not an option of a locked task or of a Celery task."
                f" Did you mean {suggestion}?"
            )


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, with or without its unit; None if none is close."""
    likeness, suggestion = max((_likeness(name, one), one) for one in known)
    return suggestion if likeness >= _MIN_LIKENESS else None


def _likeness(name: str, known: str) -> float:
    bare = SequenceMatcher(None, _UNIT.sub("", name), _UNIT.sub("", known)).ratio()
    return max(bare, SequenceMatcher(None, name, known).ratio())


def _is_known(name: str, task_options: Mapping[str, Any], app: Celery | None) -> bool:
    base = task_options.get("base") or (Task if app is None else app.Task)
    return hasattr(base, name)
