"""Whether a task that raised will be tried again. By its own will: contention is not meant here."""

from __future__ import annotations

from typing import Any

from celery.exceptions import Ignore, Retry

from syncguard_celery.calls import Call
from syncguard_celery.redelivery import ComesBack


def ends_in_retry(call: Call, error: BaseException | None) -> bool:
    """Whether Celery will run this task again because of how it ended.

    ``autoretry_for`` acts outside the function we wrap, after our lock is let go, so it has to be
    foreseen. The rules are those of ``celery.app.autoretry``.
    """
    if isinstance(error, (ComesBack, Retry)):
        return True
    if error is None or call.task is None or call.request is None or call.request.called_directly:
        return False
    task: Any = call.task
    if not hasattr(task, "_orig_run") or isinstance(error, Ignore):
        return False
    if isinstance(error, tuple(getattr(task, "dont_autoretry_for", ()))):
        return False
    if not isinstance(error, tuple(getattr(task, "autoretry_for", ()))):
        return False
    limit = getattr(task, "override_max_retries", None)
    if limit is None:
        limit = getattr(task, "retry_kwargs", {}).get("max_retries")
    if limit is None:
        limit = task.max_retries
    return limit is None or call.request.retries < limit
