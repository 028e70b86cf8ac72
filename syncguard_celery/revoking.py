"""The worker's main process: it sees a message before any task runs, and may be the last to.

A task that is revoked or expires before it ran never reaches the function we wrap; only
``task_revoked`` tells, here. The id in the message is spent if the task did run, so releasing by
it harms nobody.
"""

from __future__ import annotations

from typing import Any

from celery.signals import task_received, task_revoked

from syncguard_celery.backends import backend_of
from syncguard_celery.calls import locked_function
from syncguard_celery.exiting import release_again
from syncguard_celery.luggage import HEADER, seal_lock, take_lock


def listen() -> None:
    """From now on. Not earlier than the first task with a publish-time lock: receivers cost."""
    task_received.connect(_seal, weak=False, dispatch_uid=f"{__name__}.seal")
    task_revoked.connect(_release, weak=False, dispatch_uid=f"{__name__}.release")


def _seal(request: Any = None, **_: object) -> None:
    luggage = request.request_dict.get(HEADER)
    if isinstance(luggage, dict):
        seal_lock(luggage)


def _release(sender: Any = None, request: Any = None, **_: object) -> None:
    locked = locked_function(sender)
    lock_id = None if locked is None else take_lock(request)
    if lock_id is not None:
        release_again(backend_of(locked.options, sender.app), lock_id)
