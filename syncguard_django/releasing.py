"""Force-release: freeing the lock of a holder that an administrator saw, and writing it down.

The audit comes first, inside a transaction: no lock is freed that the log does not know of, and
nothing is logged that was not done.
"""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.admin.models import LogEntry
from django.db import router, transaction

from syncguard import LockError, LockEvent
from syncguard_django.aliases import locks
from syncguard_django.configuration import configuration
from syncguard_django.inspection import Failure, LiveLock
from syncguard_django.signals import sender_of_events


def release(lock: LiveLock, write_down: Callable[[str], object]) -> bool | Failure:
    """Free a lock, if this very holder still has it. False: it has not; nothing was changed."""
    info = lock.info
    about = f"fence {info.fence}, lock-id hash {info.lock_id_hash}, alias {lock.using}"
    database = router.db_for_write(LogEntry)
    try:
        with transaction.atomic(using=database):
            write_down(f"Force-released: {about}.")
            result = locks.inspector(lock.using).force_release(
                info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
            )
            if not result.ok:
                transaction.set_rollback(True, using=database)
    except LockError as error:
        # After a time-out nobody knows whether it happened, so this is written down as well.
        write_down(f"Tried to force-release ({error.code}): {about}.")
        return Failure(lock.using, error.code, str(error))
    if result.ok and configuration().of(lock.using).telemetry:
        event = LockEvent("release", "ok", key_hash=info.key_hash, lock_id_hash=info.lock_id_hash)
        sender_of_events(lock.using)(event)
    return result.ok
