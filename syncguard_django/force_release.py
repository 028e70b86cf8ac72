"""Force-release: releases the lock of a holder that an administrator saw, and writes an audit log.

The audit is written and committed before the release: no lock is released without a log entry. The
result is written into the same row afterwards.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from django.apps import apps
from django.db import router, transaction
from django.utils.translation import gettext as _

from syncguard import LockError, LockEvent
from syncguard_django.configured_backends import locks
from syncguard_django.live_locks import Failure, Holder, LiveLock
from syncguard_django.models import Lock
from syncguard_django.settings import configuration
from syncguard_django.signals import sender_of_events

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

_logger: Final = logging.getLogger("syncguard.audit")

Outcome = Literal["begun", "released", "not held", "unknown"]


@dataclass(frozen=True, slots=True)
class Actor:
    """The user who releases: a name for the log, and an account of this site for the admin's."""

    name: str
    user_pk: int | str | None

    @property
    def is_in_the_admins_log(self) -> bool:
        """Whether the admin's log gets a row: the admin is installed, and an account is given."""
        return self.user_pk is not None and apps.is_installed("django.contrib.admin")


def release(holder: Holder, actor: Actor) -> bool | Failure:
    """Release a lock if this holder still holds it. False: it does not; nothing was changed."""
    lock, info = holder.lock, holder.lock.info
    audit = _Audit(lock, actor)
    audit.write("begun")
    try:
        result = locks.inspector(lock.using).release(holder.lock_id)
    except LockError as error:
        # After a time-out it is unknown whether the lock was released.
        audit.write("unknown", error.code)
        return Failure(lock.using, error.code, str(error))
    audit.write("released" if result.ok else "not held")
    if result.ok and configuration().of(lock.using).telemetry:
        event = LockEvent("release", "ok", key_hash=info.key_hash, lock_id_hash=info.lock_id_hash)
        sender_of_events(lock.using)(event)
    return result.ok


class _Audit:
    """One row in the admin's log, and lines in the log ``syncguard.audit``."""

    def __init__(self, lock: LiveLock, actor: Actor) -> None:
        self._lock = lock
        self._actor = actor
        self._row: LogEntry | None = None

    def write(self, outcome: Outcome, code: str = "") -> None:
        """Write, and commit before this returns. Errors of the database reach the caller."""
        info = self._lock.info
        if self._actor.is_in_the_admins_log:
            self._save(outcome, code)
        _logger.warning(
            "force-release of %s (fence %s, alias %s) by %s: %s",
            info.key_hash,
            info.fence,
            self._lock.using,
            self._actor.name,
            code or outcome,
        )

    def _save(self, outcome: Outcome, code: str) -> None:
        from django.contrib.admin.models import CHANGE, LogEntry
        from django.contrib.contenttypes.models import ContentType

        assert self._actor.user_pk is not None
        heading, text = _words(outcome, self._lock, code)
        with transaction.atomic(using=router.db_for_write(LogEntry), durable=True):
            if self._row is None:
                kind = ContentType.objects.get_for_model(Lock)
                self._row = LogEntry(
                    user_id=self._actor.user_pk,
                    content_type_id=kind.pk,
                    object_id=f"{self._lock.using}:{self._lock.info.lock_id_hash}",
                    action_flag=CHANGE,
                )
            self._row.object_repr, self._row.change_message = heading[:200], text
            self._row.save()


def _words(outcome: Outcome, lock: LiveLock, code: str) -> tuple[str, str]:
    """The heading for the admin's list of recent actions, and the full text."""
    info = lock.info
    facts = {
        "hash": info.key_hash,
        "fence": lock.short_fence,
        "id": info.lock_id_hash,
        "alias": lock.using,
        "code": code,
    }
    headings = {
        "begun": _("Release begun: %(hash)s (fence %(fence)s)"),
        "released": _("Released: %(hash)s (fence %(fence)s)"),
        "not held": _("Not released, no longer held: %(hash)s (fence %(fence)s)"),
        "unknown": _("Perhaps released (%(code)s): %(hash)s (fence %(fence)s)"),
    }
    texts = {
        "begun": _("Force-release begun: %(about)s."),
        "released": _("Force-released: %(about)s."),
        "not held": _("Tried to force-release; the holder no longer held it: %(about)s."),
        "unknown": _("Tried to force-release (%(code)s): %(about)s."),
    }
    about = _("fence %(fence)s, lock-id hash %(id)s, alias %(alias)s") % facts
    return headings[outcome] % facts, texts[outcome] % {"about": about, "code": code}
