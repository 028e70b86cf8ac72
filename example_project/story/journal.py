"""Records the events of the locks, in the process where they happen.

The signals of ``syncguard_celery`` report them. Code of the site records what only it knows, such
as a refused write. Nothing is recorded while no scene is being played.
"""

from __future__ import annotations

import os
from typing import Any

from django.db import connection

from syncguard_celery import (
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
    task_lock_released,
)


def note(
    kind: str,
    *,
    fence: str | None = None,
    pid: int | None = None,
    task_id: str | None = None,
    detail: str = "",
    until_ms: int | None = None,
) -> None:
    """Record one event of the scene that is being played."""
    from example_project.story.models import Event, Scene

    scene = Scene.objects.filter(ended_ms=None).order_by("-pk").first()
    if scene is None:
        return
    Event.objects.create(
        scene=scene,
        kind=kind,
        fence=fence or "",
        pid=pid or os.getpid(),
        task_id=task_id or "",
        detail=detail,
        until_ms=until_ms,
    )


def listen() -> None:
    """Connect to the signals of the locked tasks."""
    task_lock_acquired.connect(_acquired, weak=False, dispatch_uid="journal")
    task_lock_released.connect(_released, weak=False, dispatch_uid="journal")
    task_lock_contended.connect(_contended, weak=False, dispatch_uid="journal")
    task_lock_lost.connect(_lost, weak=False, dispatch_uid="journal")


def _acquired(task_id: str | None = None, fence: str | None = None, **_: Any) -> None:
    note("acquired", fence=fence, task_id=task_id)


def _released(task_id: str | None = None, fence: str | None = None, **_: Any) -> None:
    note("released", fence=fence, task_id=task_id)


def _contended(
    task_id: str | None = None, fence: str | None = None, policy: str = "", **_: Any
) -> None:
    # "publish": delay() found the same task queued or running, and published nothing.
    kinds = {"publish": "duplicate", "skip": "skipped"}
    note(kinds.get(policy, "contended"), fence=fence, task_id=task_id)


def _lost(task_id: str | None = None, fence: str | None = None, **_: Any) -> None:
    try:
        note("lost", fence=fence, task_id=task_id)
    finally:
        connection.close()  # called on the heartbeat's thread: Django does not close its connection
