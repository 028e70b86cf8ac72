"""Where the demo's locks are, and how the demo pauses that store: only what is its own.

``SYNCGUARD_URL`` names a Redis, a PostgreSQL or a file for SQLite. Without it, the demo starts a
Redis. A Redis of yours may serve others and is never paused. In PostgreSQL the demo has tables of
its own, and a file of SQLite has one writer: both pause while one transaction holds them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from syncguard.testing import RedisServer

LOCKS_TABLE = "syncguard_example_locks"
FENCES_TABLE = "syncguard_example_fences"

Pause = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def lock_store() -> Iterator[Pause | None]:
    """Start a Redis unless ``SYNCGUARD_URL`` is set. Yields what pauses the store, if it may."""
    url = os.environ.get("SYNCGUARD_URL")
    if url is None:
        with RedisServer() as server:
            os.environ["SYNCGUARD_URL"] = server.url
            yield server.paused
        return
    yield _pause_of(url)


def options_of(url: str) -> dict[str, object]:
    """The OPTIONS of the alias: in PostgreSQL, tables of the demo's own."""
    if not url.startswith("postgres"):
        return {}
    return {"locks_table": LOCKS_TABLE, "fences_table": FENCES_TABLE}


def _pause_of(url: str) -> Pause | None:
    if url.startswith("postgres"):
        return functools.partial(_paused_tables, url)
    if url.startswith("sqlite:"):
        return functools.partial(_paused_file, url.removeprefix("sqlite:///"))
    return None


@contextlib.contextmanager
def _paused_file(path: str) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.rollback()


@contextlib.contextmanager
def _paused_tables(url: str) -> Iterator[None]:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(f"LOCK TABLE {LOCKS_TABLE} IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()
