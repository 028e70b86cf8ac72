"""The fence guard: a database that refuses a holder whose lock has passed to another.

``guard`` protects whatever a transaction writes; ``FencedModel`` protects single rows. A fence is
the token that a lock gave its holder (``held.fence``): fifteen digits, larger for every later
holder, so that comparing the texts compares the holders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from django.db import IntegrityError, connections, models, router, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from syncguard import FENCE_MAX, LockError, format_fence, normalize_and_validate_key
from syncguard_django.configuration import DEFAULT_ALIAS, configuration
from syncguard_django.models import FENCE_DIGITS, FenceMark

M = TypeVar("M", bound="FencedModel")

NO_FENCE: Final = format_fence(0)
"""What a row carries that no holder has written yet."""


class StaleFence(Exception):
    """A later holder has written already. Nothing was changed; the work is not yours any more."""

    def __init__(self, fence: str, seen: str) -> None:
        super().__init__(fence, seen)
        self.fence = fence
        self.seen = seen

    def __str__(self) -> str:
        return (
            f"fence {self.fence} is stale: a holder with fence {self.seen} has written since."
            " Your lock has passed to another holder; stop, and do not write."
            " If every new holder is refused, Redis has lost its fence counters: run"
            " manage.py syncguard_guard --forget KEY once for each key, and set FENCE_FLOOR to"
            " 'clock' so that it cannot happen again."
        )


def guard(key: str, fence: str, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> None:
    """Refuse to go on if a higher fence was seen for this key. Call it first in a transaction.

    Records the fence, and keeps later holders waiting until this transaction ends. The same
    holder may come again with the same fence. ``using`` is the alias of the lock, ``database``
    that of the database. Raises ``StaleFence``.
    """
    fence = _checked(fence)
    digest = key_digest(key, using)
    database = database or router.db_for_write(FenceMark)
    connection = connections[database]
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            "guard() protects what the same transaction writes: call it inside transaction.atomic()"
        )
    record = _RECORDERS.get(connection.vendor, _record_under_a_row_lock)
    if not record(digest, fence, database):
        seen = FenceMark.objects.using(database).get(pk=digest).fence
        raise StaleFence(fence, seen)


def forget(key: str, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> bool:
    """Let the guard accept any fence for this key again. False: it knew none."""
    database = database or router.db_for_write(FenceMark)
    marks = FenceMark.objects.using(database).filter(pk=key_digest(key, using))
    return bool(marks.delete()[0])


def key_digest(key: str, using: str = DEFAULT_ALIAS) -> str:
    """What names a key in the database: SHA-256, because the display hash is no identity."""
    prefix = configuration().of(using).key_prefix
    return hashlib.sha256(f"{prefix}\0{normalize_and_validate_key(key)}".encode()).hexdigest()


def _record_in_one_statement(digest: str, fence: str, database: str) -> bool:
    connection = connections[database]
    quote = connection.ops.quote_name
    table, pk, column, seen_at = map(
        quote, (FenceMark._meta.db_table, "key_digest", "fence", "seen_at")
    )
    now = connection.ops.adapt_datetimefield_value(timezone.now())
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({pk}, {column}, {seen_at}) VALUES (%s, %s, %s)"  # noqa: S608
            f" ON CONFLICT ({pk}) DO UPDATE"
            f" SET {column} = excluded.{column}, {seen_at} = excluded.{seen_at}"
            f" WHERE {table}.{column} <= excluded.{column}",
            [digest, fence, now],
        )
        return bool(cursor.rowcount == 1)


def _record_under_a_row_lock(digest: str, fence: str, database: str) -> bool:
    marks = FenceMark.objects.using(database)
    marks.get_or_create(pk=digest, defaults={"fence": fence, "seen_at": timezone.now()})
    mark = marks.select_for_update().get(pk=digest)
    if mark.fence > fence:
        return False
    mark.fence, mark.seen_at = fence, timezone.now()
    mark.save(using=database)
    return True


_RECORDERS: Final = {
    "postgresql": _record_in_one_statement,
    "sqlite": _record_in_one_statement,
}


class FencedQuerySet(models.QuerySet[M]):
    """A query set that can be bound to a fence."""

    _fence: str | None = None

    def fenced(self, fence: str) -> FencedQuerySet[M]:
        """Bind to a fence: ``update`` and ``delete`` then raise StaleFence, and change nothing,
        when one of the rows carries a higher one."""
        bound: FencedQuerySet[M] = self.all()
        bound._fence = _checked(fence)
        return bound

    def update(self, **values: Any) -> int:
        if self._fence is None:
            return super().update(**values)
        with transaction.atomic(using=self.db):
            self._refuse_if_stale(self._fence)
            return super().update(**{**values, "fence": self._fence})

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        if self._fence is None:
            return super().delete()
        with transaction.atomic(using=self.db):
            self._refuse_if_stale(self._fence)
            return super().delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def _refuse_if_stale(self, fence: str) -> None:
        # An update that changes nothing locks the rows on every database, SQLite included:
        # nobody can lift a fence between the question and the change.
        super().update(fence=models.F("fence"))
        higher = self.filter(fence__gt=fence).order_by("-fence")
        seen = higher.values_list("fence", flat=True).first()
        if seen is not None:
            raise StaleFence(fence, seen)

    def _clone(self) -> FencedQuerySet[M]:
        clone: FencedQuerySet[M] = super()._clone()  # type: ignore[misc]
        clone._fence = self._fence
        return clone


class FencedModel(models.Model):
    """A model whose rows remember the fence of the holder that wrote them last."""

    fence = models.CharField(max_length=FENCE_DIGITS, default=NO_FENCE, editable=False)

    objects = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save_fenced(
        self, fence: str, *, using: str | None = None, update_fields: Iterable[str] | None = None
    ) -> None:
        """``save()``, unless the row carries a higher fence: then StaleFence, and no change."""
        fence = _checked(fence)
        using = using or router.db_for_write(type(self), instance=self)
        if update_fields is not None:
            update_fields = {*update_fields, "fence"}
        before, self.fence = self.fence, fence
        try:
            with transaction.atomic(using=using):
                if self._claim(fence, using) or not self._inserted(fence, using):
                    self.save(using=using, force_update=True, update_fields=update_fields)
        except BaseException:
            self.fence = before
            raise

    def _inserted(self, fence: str, using: str) -> bool:
        """Save as a new row. False: somebody else was quicker, and their row is claimed."""
        try:
            with transaction.atomic(using=using):
                self.save(using=using, force_insert=True)
        except IntegrityError:
            if not self._claim(fence, using):
                raise
            return False
        return True

    def _claim(self, fence: str, using: str) -> bool:
        """Stamp the row, which locks it. False: there is no row yet."""
        rows = type(self)._base_manager.using(using).filter(pk=self.pk)
        if self.pk is None:
            return False
        if rows.filter(fence__lte=fence).update(fence=fence):
            return True
        seen = rows.values_list("fence", flat=True).first()
        if seen is None:
            return False
        raise StaleFence(fence, seen)


def _checked(fence: str) -> str:
    if not isinstance(fence, str) or len(fence) != FENCE_DIGITS or not fence.isdecimal():
        raise LockError("InvalidArgument", f"a fence is a str of {FENCE_DIGITS} digits")
    if fence > FENCE_MAX:
        raise LockError("InvalidArgument", f"a fence is at most {FENCE_MAX}")
    return fence
