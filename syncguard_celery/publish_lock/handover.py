"""Handing a lock on in a message: it goes with the message, or it is released."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from syncguard import Lock, LockBackend
from syncguard_celery.propagation import attaching

R = TypeVar("R")


def publish_with_lock(
    lock_id: str, backend: LockBackend, task_id: str, publish: Callable[[], R]
) -> R:
    """Publish a task whose message is to carry this lock."""
    try:
        with attaching(task_id, lock=lock_id) as attachment:
            result = publish()
    except BaseException:
        release_again(backend, lock_id)
        raise
    if not attachment.is_used:
        # Nobody carries it: the worker of a message that comes later will acquire afresh.
        release_again(backend, lock_id)
    return result


def release_again(backend: LockBackend, lock_id: str) -> None:
    """Something went wrong while the lock was let go: make sure that it does not live on."""
    with contextlib.suppress(Exception):
        backend.release(lock_id)


def release_after_interrupt(block: Lock | None, backend: LockBackend, lock_id: str) -> None:
    """A time limit or a shutdown struck at whatever point: neither heartbeat nor lock lives on."""
    if block is not None:
        with contextlib.suppress(Exception):
            block.__exit__(None, None, None)
    release_again(backend, lock_id)
