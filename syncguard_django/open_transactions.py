"""Which transactions of this thread are open, and which of them have run a query. No I/O.

Inside a ``TestCase`` the result is as in production: the blocks that ``TestCase`` opens around a
test do not count. Nothing here connects to a database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

Connection = BaseDatabaseWrapper

_SAVEPOINTS: Final = ("SAVEPOINT ", "RELEASE SAVEPOINT ", "ROLLBACK TO SAVEPOINT ")
_PSYCOPG_IDLE: Final = 0
_MYSQL_IN_TRANSACTION: Final = 1


def open_transactions() -> list[Connection]:
    """The connections of this thread with an open transaction."""
    return [one for one in connections.all(initialized_only=True) if is_open(one)]


def is_open(connection: Connection) -> bool:
    """Whether a transaction is open, by ``atomic()`` or because autocommit is off."""
    if connection.in_atomic_block:
        return outermost_block(connection) is not None
    if connection.connection is None or connection.autocommit:
        return False
    return _in_transaction(connection.connection)


def outermost_block(connection: Connection) -> int | None:
    """The position in ``atomic_blocks`` of the first block that ``TestCase`` did not open."""
    blocks: list[Any] = connection.atomic_blocks
    for position, block in enumerate(blocks):
        if not block._from_testcase:
            return position
    return None


def savepoint_of(connection: Connection, position: int) -> str | None:
    """The savepoint that the block at this position created, if any."""
    # The outermost block creates none, unless autocommit was already off.
    without = len(connection.atomic_blocks) - len(connection.savepoint_ids)
    return connection.savepoint_ids[position - without] if position >= without else None


def has_run_a_query(connection: Connection) -> bool:
    """Whether the open transaction of ``atomic()`` has run a query."""
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, QueryRecorder):
            return wrapper.has_recorded(connection)
    return False


def record_queries(connection: Connection) -> None:
    """Record from now on which transactions of the connection have run a query."""
    if not any(isinstance(wrapper, QueryRecorder) for wrapper in connection.execute_wrappers):
        # First in the list: ``execute_wrapper()`` removes the last one.
        connection.execute_wrappers.insert(0, QueryRecorder())


class QueryRecorder:
    """An ``execute_wrapper`` that records the transaction of the latest query."""

    __slots__ = ("_transaction",)

    def __init__(self) -> None:
        self._transaction: tuple[object, object, str | None] | None = None

    def __call__(
        self, execute: Callable[..., object], sql: Any, params: Any, many: bool, context: Any
    ) -> object:
        connection = context["connection"]
        if connection.in_atomic_block and not _is_savepoint_statement(sql):
            self._transaction = _identity(connection)
        return execute(sql, params, many, context)

    def has_recorded(self, connection: Connection) -> bool:
        recorded, current = self._transaction, _identity(connection)
        if recorded is None or current is None:
            return False
        return recorded[0] is current[0] and recorded[1] is current[1] and recorded[2] == current[2]


def _identity(connection: Connection) -> tuple[object, object, str | None] | None:
    """What identifies a transaction.

    Django creates a new list of hooks at the end of each transaction. Inside ``TestCase`` there is
    only one transaction, and the savepoint identifies what would be one.
    """
    position = outermost_block(connection)
    if position is None:
        return None
    savepoint = savepoint_of(connection, position)
    return connection.run_on_commit, connection.atomic_blocks[position], savepoint


def _is_savepoint_statement(sql: object) -> bool:
    return isinstance(sql, str) and sql.startswith(_SAVEPOINTS)


def _in_transaction(driver: Any) -> bool:
    """Read the state from the driver. If the driver does not have it, assume an open transaction:
    the lock is then held too long rather than too short."""
    in_transaction = getattr(driver, "in_transaction", None)  # sqlite3
    if in_transaction is not None:
        return bool(in_transaction)
    info = getattr(driver, "info", None)  # psycopg
    status = getattr(info, "transaction_status", None)
    if status is not None:
        return bool(status != _PSYCOPG_IDLE)
    status = getattr(driver, "server_status", None)  # PyMySQL
    return status is None or bool(status & _MYSQL_IN_TRANSACTION)
