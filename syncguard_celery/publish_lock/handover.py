"""Handing over a lock in a message: the message carries it, or it is released."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from syncguard import LockBackend
from syncguard.backend import undo
from syncguard_celery.fence_propagation import attaching

R = TypeVar("R")


UNDO_MS: Final = 3_600_000
"""How long to try a release again that failed. A publish-time lock may last as long."""


def publish_with_lock(
    lock_id: str,
    backend: LockBackend,
    task_id: str,
    publish: Callable[[], R],
    key: str | None = None,
) -> R:
    """Publish a task whose message carries this lock. ``key`` is the lock's, if it is known."""
    try:
        with attaching(task_id, lock=lock_id) as attachment:
            result = publish()
    except BaseException:
        release_quietly(backend, lock_id, key)
        raise
    if not attachment.is_used:
        # No message carries it: the worker of a later message acquires a new lock.
        release_quietly(backend, lock_id, key)
    return result


def release_quietly(backend: LockBackend, lock_id: str, key: str | None = None) -> None:
    """Release after an error, so that the lock is not left behind. Never raises an Exception.

    If the server does not answer, the release is repeated in the background: else no task with this
    key could be published until the TTL ends.
    """
    try:
        backend.release(lock_id)
    except Exception:
        with contextlib.suppress(Exception):
            undo(backend, lock_id, key=key, ttl_ms=UNDO_MS)
