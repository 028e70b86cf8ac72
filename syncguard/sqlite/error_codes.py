"""From an error of SQLite to an error code of ours, with words that help."""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from syncguard.errors import ErrorCode, ErrorContext, LockError

# SQLite's primary result codes. Python names them only from 3.11 on.
PERM, BUSY, LOCKED, NOMEM, READONLY, IOERR, CORRUPT = 3, 5, 6, 7, 8, 10, 11
FULL, CANTOPEN, AUTH, NOTADB = 13, 14, 23, 26

_CODES_BY_TEXT: Final = {
    "database is locked": BUSY,
    "database table is locked": LOCKED,
    "out of memory": NOMEM,
    "attempt to write a readonly database": READONLY,
    "disk I/O error": IOERR,
    "database disk image is malformed": CORRUPT,
    "database or disk is full": FULL,
    "unable to open database file": CANTOPEN,
    "file is not a database": NOTADB,
}
"""For Python 3.10, whose errors have no code."""

_FORBIDDEN: Final[tuple[ErrorCode, str]] = (
    "AuthFailed",
    "cannot be written: check the permissions of the file and of its directory",
)
_MEANINGS: Final[dict[int, tuple[ErrorCode, str]]] = {
    PERM: _FORBIDDEN,
    AUTH: _FORBIDDEN,
    READONLY: _FORBIDDEN,
    NOMEM: ("ServiceUnavailable", "cannot be used: there is no memory left"),
    IOERR: ("ServiceUnavailable", "cannot be read or written: the disk reports an error"),
    FULL: ("ServiceUnavailable", "cannot be written: the disk is full"),
    NOTADB: ("InvalidArgument", "is not a SQLite database: choose another path"),
    CORRUPT: (
        "Internal",
        "is damaged: stop every process that uses it, and move it away with its -wal and -shm",
    ),
}


def code_of(error: sqlite3.Error) -> int:
    """The primary result code, 0 if it is not known."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _CODES_BY_TEXT.get(str(error), 0)
    return int(code) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process has the file for a moment: worth a retry."""
    return code_of(error) in (BUSY, LOCKED)


def lock_error(error: sqlite3.Error, path: str) -> LockError:
    """The LockError for an error of SQLite."""
    code = code_of(error)
    ours, what = (
        _why_not_opened(path)
        if code == CANTOPEN
        else _MEANINGS.get(code, ("Internal", "cannot be used: SQLite reports an error"))
    )
    return LockError(ours, f"the lock file {path} {what}", ErrorContext(cause=error))


def _why_not_opened(path: str) -> tuple[ErrorCode, str]:
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        return "InvalidArgument", "is a directory: give the path of a file in it"
    if not os.path.isdir(folder):
        return "ServiceUnavailable", "cannot be opened: its directory does not exist"
    if not os.access(folder, os.W_OK | os.X_OK) or (
        os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)
    ):
        return _FORBIDDEN
    return "ServiceUnavailable", "cannot be opened"
