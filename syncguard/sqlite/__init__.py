"""Locks in a SQLite file: for one machine with many processes, without a server."""

from __future__ import annotations

from syncguard.sqlite.sqlite_backend import SQLiteBackend
from syncguard.sqlite.sqlite_backend_async import AsyncSQLiteBackend

__all__ = ["AsyncSQLiteBackend", "SQLiteBackend"]
