"""The tables of a lock file, and whether a file is one."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from syncguard._sql.table_names import refuse_typescript_table
from syncguard.errors import InvalidArgument, LockError, invalid_argument

APPLICATION_ID: Final = 0x5347_4C4B
"""Written into the header of a lock file: "SGLK". ``file`` and SQLite show it."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Tables:
    """The names of the two tables, checked: they become a part of the SQL."""

    def __init__(self, locks: str, fences: str) -> None:
        for option, name in (("locks_table", locks), ("fences_table", fences)):
            if not isinstance(name, str) or _IDENTIFIER.fullmatch(name) is None:
                raise invalid_argument(
                    f"{option} must be a name of letters, digits and _, at most 63, that starts"
                    " with no digit"
                )
            if name.lower().startswith("sqlite_"):
                raise invalid_argument(f"{option} must not begin with sqlite_: SQLite reserves it")
            refuse_typescript_table(option, name)
        if locks.lower() == fences.lower():
            raise invalid_argument("locks_table and fences_table must be two different tables")
        self.locks: Final = locks
        self.fences: Final = fences


def prepare(connection: sqlite3.Connection, tables: Tables) -> None:
    """Make the tables if they do not exist. Refuses the file of another application."""
    if _is_ready(connection, tables):
        return
    refuse_foreign_file(connection)
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise LockError("Internal", "SQLite cannot use a write-ahead log on this file system")
    connection.execute("BEGIN IMMEDIATE")
    refuse_foreign_file(connection)  # again: another process may have written it meanwhile
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    # The names are checked identifiers.
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {tables.locks} (key TEXT PRIMARY KEY NOT NULL,"
        " lock_id TEXT NOT NULL UNIQUE, expires_at_ms INTEGER NOT NULL,"
        " acquired_at_ms INTEGER NOT NULL, fence TEXT NOT NULL, user_key TEXT NOT NULL,"
        " holder TEXT) WITHOUT ROWID"
    )
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {tables.fences} (fence_key TEXT PRIMARY KEY NOT NULL,"
        " fence INTEGER NOT NULL) WITHOUT ROWID"
    )
    connection.execute("COMMIT")


def _is_ready(connection: sqlite3.Connection, tables: Tables) -> bool:
    (found,) = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)",
        (tables.locks, tables.fences),
    ).fetchone()
    return found == 2 and _application_id(connection) == APPLICATION_ID


def refuse_foreign_file(connection: sqlite3.Connection) -> None:
    """Raise InvalidArgument for a file with tables that are not ours."""
    # In this order: another process that makes the file writes tables and id in one transaction, so
    # whoever sees its tables also sees its id afterwards.
    (things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    found = _application_id(connection)
    if found != APPLICATION_ID and (things or found != 0):
        raise InvalidArgument(
            "this SQLite file has the tables of another application: give the locks a file of"
            " their own"
        )


def _application_id(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    return int(number)
