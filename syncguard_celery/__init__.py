"""Celery tasks that hold a SyncGuard lock while they run.

Public names, and nothing else. ``syncguard_celery.testing`` has what tests need.
"""

from syncguard import current_fence, current_lock
from syncguard_celery.contention import LockContended
from syncguard_celery.decorators import locked, locked_task
from syncguard_celery.fence_propagation import inherited_fence
from syncguard_celery.signals import (
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
    task_lock_released,
)

__all__ = [
    "LockContended",
    "current_fence",
    "current_lock",
    "inherited_fence",
    "locked",
    "locked_task",
    "task_lock_acquired",
    "task_lock_contended",
    "task_lock_lost",
    "task_lock_released",
]
