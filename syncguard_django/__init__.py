"""SyncGuard for Django: locks from one setting, shaped like ``CACHES``.

Public names, and nothing else. Signals are in ``syncguard_django.signals``, the fence guard in
``syncguard_django.fencing``.
"""

from syncguard import current_fence, current_lock
from syncguard_django.configured_backends import alocks, locks
from syncguard_django.decorators import locked
from syncguard_django.lock_order_warning import LockOrderWarning
from syncguard_django.locking import alock, lock

__all__ = [
    "LockOrderWarning",
    "alock",
    "alocks",
    "current_fence",
    "current_lock",
    "lock",
    "locked",
    "locks",
]
