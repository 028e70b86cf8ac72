"""``protect``: holds the row of a lock in the caller's own transaction. Writes nothing.

For backends whose locks are rows of the same database. Another holder cannot take the row before
the transaction ends, so a holder that lost its lock cannot commit, and needs no fence column.
"""

from __future__ import annotations

from typing import Final

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from syncguard import Held, LockError
from syncguard.backend import ProtectsTransactions
from syncguard_django.configured_backends import locks
from syncguard_django.fencing.fence_values import StaleFence
from syncguard_django.open_transactions import outermost_block
from syncguard_django.settings import DEFAULT_ALIAS, configuration

_SERIALIZATION_FAILURE: Final = "40001"


def protect(held: Held, using: str = DEFAULT_ALIAS, *, database: str | None = None) -> None:
    """Raise ``StaleFence`` if the lock is not held any more; else keep it until the commit.

    After an error the transaction cannot be committed, also not by code that ignores the error, or
    that catches it outside of an inner ``atomic()``.
    Call it first in a transaction that began after the lock was acquired. ``using`` is the alias
    of the lock. ``database`` is that of the transaction; the default is the alias's ``DATABASE``.
    """
    if not isinstance(held, Held):
        raise LockError("InvalidArgument", "protect() takes what `with lock(...) as held` gives")
    backend = locks.inspector(using)
    database = database or configuration().of(using).database
    if not isinstance(backend, ProtectsTransactions) or database is None:
        raise LockError(
            "InvalidArgument",
            f"protect() needs locks in the database of the transaction. The alias {using} has no"
            " DATABASE: use guard() or a FencedModel",
        )
    connection = connections[database]
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            "protect() protects what the same transaction writes: call it inside"
            " transaction.atomic()"
        )
    try:
        if not _holds_row(connection, backend.protect_sql, held):
            _refuse(held, using)
    except BaseException:
        _roll_back_all_blocks(connection)
        raise


def _holds_row(connection: BaseDatabaseWrapper, sql: str, held: Held) -> bool:
    try:
        # Not connection.cursor(): with DEBUG, it logs the statement with the lock id.
        with connection.make_cursor(connection.create_cursor()) as cursor:
            cursor.execute(sql, [held.lock_id])
            return cursor.fetchone() is not None
    except DatabaseError as error:
        # Another holder has taken the lock since this transaction's snapshot.
        if _sqlstate(error) == _SERIALIZATION_FAILURE:
            raise StaleFence(held.fence) from None
        raise


def _refuse(held: Held, using: str) -> None:
    """The transaction does not see the lock. Is that because its snapshot is older?"""
    if locks.inspector(using).lookup(lock_id=held.lock_id) is not None:
        raise LockError(
            "InvalidArgument",
            "this transaction does not see the lock, which was acquired after the transaction's"
            " first query: acquire the lock before that",
        )
    raise StaleFence(held.fence)


def _roll_back_all_blocks(connection: BaseDatabaseWrapper) -> None:
    """Let the whole transaction fail.

    ``set_rollback`` alone rolls back to the savepoint of the innermost block, and an outer block
    could commit what it wrote. A block without a savepoint passes the rollback on.
    """
    connection.set_rollback(True)
    outermost = outermost_block(connection)
    if outermost is not None:
        inner = len(connection.atomic_blocks) - outermost - 1
        for nth in range(1, inner + 1):
            connection.savepoint_ids[-nth] = None  # type: ignore[call-overload]


def _sqlstate(error: DatabaseError) -> str | None:
    cause = error.__cause__
    # psycopg, and psycopg2.
    state: str | None = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state
