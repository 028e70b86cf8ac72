"""``SQLiteTransaction``: the tables, for one operation. All SQL of the operations is here."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from syncguard._embedded.transaction import LockRow
from syncguard._sql.names import KEY_LIMIT_BYTES, Names
from syncguard.constants import CLEANUP_GUARD_MS, MAX_KEY_LENGTH_BYTES, TIME_TOLERANCE_MS
from syncguard.sqlite.schema import Tables

_NO_LIMIT: Final = -1
_MAX_NUMBER: Final = 2**62
_COLUMNS: Final = "key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, holder"
_LAST: Final = "\U0010ffff"


class SQLiteTransaction:
    """Implements ``Transaction``. The names of the tables are checked identifiers."""

    def __init__(self, connection: sqlite3.Connection, tables: Tables, now_ms: int) -> None:
        self._execute = connection.execute
        self._locks = tables.locks
        self._fences = tables.fences
        self.now_ms: Final = now_ms

    def find(self, storage_key: str) -> LockRow | None:
        return self._row("key = ?", storage_key)

    def find_by_id(self, lock_id: str) -> LockRow | None:
        return self._row("lock_id = ?", lock_id)

    def put(self, row: LockRow) -> None:
        # Not INSERT OR REPLACE: that would delete another lock with the same lock id.
        self._execute(
            f"INSERT INTO {self._locks} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (key) DO UPDATE SET lock_id = excluded.lock_id,"
            " expires_at_ms = excluded.expires_at_ms, acquired_at_ms = excluded.acquired_at_ms,"
            " fence = excluded.fence, holder = excluded.holder",
            row,
        )

    def remove(self, row: LockRow) -> None:
        self._execute(f"DELETE FROM {self._locks} WHERE key = ?", (row.storage_key,))  # noqa: S608

    def next_fence(self, fence_key: str, least: int) -> int:
        found = self._execute(
            f"SELECT fence FROM {self._fences} WHERE fence_key = ?",  # noqa: S608
            (fence_key,),
        ).fetchone()
        number = max(found[0] + 1 if found else 1, least)
        self._execute(
            f"INSERT INTO {self._fences} (fence_key, fence) VALUES (?, ?)"  # noqa: S608
            " ON CONFLICT (fence_key) DO UPDATE SET fence = excluded.fence",
            (fence_key, number),
        )
        return number

    def live_rows(self, names: Names, limit: int | None = None, offset: int = 0) -> list[LockRow]:
        condition, values = self._live(names)
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM {self._locks} WHERE {condition}"  # noqa: S608
            " ORDER BY expires_at_ms, key LIMIT ? OFFSET ?",
            (
                *values,
                _NO_LIMIT if limit is None else min(limit, _MAX_NUMBER),
                min(offset, _MAX_NUMBER),
            ),
        )
        return [LockRow._make(row) for row in rows.fetchall()]

    def count_live(self, names: Names) -> int:
        condition, values = self._live(names)
        return self._number(f"SELECT count(*) FROM {self._locks} WHERE {condition}", *values)  # noqa: S608

    def count_fences(self, names: Names) -> int:
        head = f"{names.head}fence:{names.head}"
        return self._number(
            f"SELECT count(*) FROM {self._fences} WHERE fence_key >= ? AND fence_key < ?",  # noqa: S608
            head,
            head + _LAST,
        )

    def remove_expired(self) -> None:
        """Delete the rows of locks that nobody released, some time after their end."""
        self._execute(
            f"DELETE FROM {self._locks} WHERE expires_at_ms < ?",  # noqa: S608
            (self.now_ms - TIME_TOLERANCE_MS - CLEANUP_GUARD_MS,),
        )

    def _row(self, condition: str, value: str) -> LockRow | None:
        found = self._execute(
            f"SELECT {_COLUMNS} FROM {self._locks} WHERE {condition}",  # noqa: S608
            (value,),
        ).fetchone()
        return None if found is None else LockRow._make(found)

    def _number(self, sql: str, *values: object) -> int:
        (number,) = self._execute(sql, values).fetchone()
        return int(number)

    def _live(self, names: Names) -> tuple[str, tuple[Any, ...]]:
        """The condition for the live locks of a prefix, without those of ``prefix:more``."""
        head, after_ms = names.head, self.now_ms - TIME_TOLERANCE_MS
        if len(head.encode()) + MAX_KEY_LENGTH_BYTES <= KEY_LIMIT_BYTES:  # no key is hashed
            return "key = ? || user_key AND expires_at_ms > ?", (head, after_ms)
        return "substr(key, 1, ?) = ? AND expires_at_ms > ?", (len(head), head, after_ms)
