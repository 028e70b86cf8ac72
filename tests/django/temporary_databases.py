"""Databases in addition to that of the test site: real files, real servers, real commits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import mariadb
import pytest
from django.db import OperationalError, connections


@pytest.fixture(scope="session")
def sqlite_settings(tmp_path_factory):
    """Django's settings of a database in a file."""
    path = tmp_path_factory.mktemp("sqlite") / "database"
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {"timeout": 60},
    }


@pytest.fixture(scope="session")
def postgres_settings(syncguard_postgres_server):
    """Django's settings of a database on a PostgreSQL of our own."""
    server = syncguard_postgres_server
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": server.host,
        "PORT": str(server.port),
        "USER": server.user,
        "NAME": server.database,
    }


@pytest.fixture(scope="session")
def mariadb_settings():
    """Django's settings of a database on a MariaDB of our own, at its usual isolation."""
    try:
        with mariadb.mariadb_server() as where:
            options = {"isolation_level": "repeatable read"}
            yield {"ENGINE": "django.db.backends.mysql", "OPTIONS": options, **where}
    except mariadb.UnavailableError as why:
        pytest.skip(f"not tested on MariaDB: {why}")


@contextmanager
def temporary_database(alias: str, settings: dict[str, object]) -> Iterator[str]:
    """A connection with that alias while the block runs. Yields the alias."""
    configured = connections.configure_settings({"default": {}, alias: settings})[alias]
    connections.settings[alias] = configured
    try:
        wait_until_ready(alias)
        yield alias
        connections[alias].close()
    finally:
        del connections[alias]
        del connections.settings[alias]


def wait_until_ready(alias: str) -> None:
    """Wait until a server that was just started accepts connections."""
    deadline = time.monotonic() + 200
    while True:
        try:
            connections[alias].ensure_connection()
            return
        except OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def run(alias: str, sql: str) -> list[tuple[object, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def start_counting(alias: str) -> None:
    run(alias, "DROP TABLE IF EXISTS counter")
    run(alias, "CREATE TABLE counter (n INTEGER NOT NULL)")
    run(alias, "INSERT INTO counter VALUES (0)")


def count_one(alias: str) -> None:
    run(alias, "UPDATE counter SET n = n + 1")


def counted(alias: str) -> int:
    ((n,),) = run(alias, "SELECT n FROM counter")
    return n
