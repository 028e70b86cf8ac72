"""Handing over a lock in a message: the message carries it, or it is released."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from syncguard import Lock, LockBackend
from syncguard_celery.fence_propagation import attaching

R = TypeVar("R")


def publish_with_lock(
    lock_id: str, backend: LockBackend, task_id: str, publish: Callable[[], R]
) -> R:
    """Publish a task whose message carries this lock."""
    try:
        with attaching(task_id, lock=lock_id) as attachment:
            result = publish()
    except BaseException:
        release_quietly(backend, lock_id)
        raise
    if not attachment.is_used:
        # No message carries it: the worker of a later message acquires a new lock.
        release_quietly(backend, lock_id)
    return result


def release_quietly(backend: LockBackend, lock_id: str) -> None:
    """Release after an error, so that the lock is not left behind. Never raises an Exception."""
    with contextlib.suppress(Exception):
        backend.release(lock_id)


def release_after_interrupt(block: Lock | None, backend: LockBackend, lock_id: str) -> None:
    """Clean up after a time limit or a shutdown at any point: end the heartbeat and the lock."""
    if block is not None:
        with contextlib.suppress(Exception):
            block.__exit__(None, None, None)
    release_quietly(backend, lock_id)
