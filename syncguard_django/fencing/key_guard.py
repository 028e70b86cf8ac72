"""``guard``: one row for each key, with the highest fence that was seen for it.

Protects everything that the same transaction writes. Uses the table ``FenceMark``, and not
``FencedModel``.
"""

from __future__ import annotations

import hashlib
from typing import Final

from django.db import connections, router
from django.db.transaction import TransactionManagementError
from django.utils import timezone

from syncguard import normalize_and_validate_key
from syncguard_django.fencing.fence_regression import report_key
from syncguard_django.fencing.fence_values import StaleFence, checked_fence
from syncguard_django.models import FenceMark
from syncguard_django.settings import DEFAULT_ALIAS, configuration


def guard(key: str, fence: str, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> None:
    """Raise ``StaleFence`` if a higher fence was seen for this key. Call it first in a transaction.

    Records the fence, and makes later holders wait until this transaction ends. The same holder
    may call it again with the same fence. ``using`` is the alias of the lock, ``database``
    that of the database.
    """
    fence = checked_fence(fence)
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
        report_key(key, seen, using)
        raise StaleFence(fence, seen)


def forget(key: str, *, using: str = DEFAULT_ALIAS, database: str | None = None) -> bool:
    """Let the guard accept any fence for this key again. False: it had recorded none."""
    database = database or router.db_for_write(FenceMark)
    marks = FenceMark.objects.using(database).filter(pk=key_digest(key, using))
    return bool(marks.delete()[0])


def key_digest(key: str, using: str = DEFAULT_ALIAS) -> str:
    """The name of a key in the database: SHA-256, because display hashes can change or collide."""
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
