"""Databases beside SQLite, as fixtures: a real PostgreSQL and a real MariaDB, started for us.

A database gets an alias while its server runs. Where a server is not installed, the tests that
need it are skipped, and say what is missing.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager

import mariadb
import postgres
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections


@contextmanager
def alias_for(alias: str, entry: dict[str, object]) -> Iterator[str]:
    """Django knows the database by this alias, with all tables."""
    settings = connections.configure_settings({"default": {}, alias: entry})
    connections.settings[alias] = settings[alias]
    try:
        _wait_until_ready(connections[alias])
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        connections[alias].close()
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@contextmanager
def isolated(alias: str, level: str) -> Iterator[str]:
    """Another alias of the same database, whose transactions have this isolation level."""
    other = f"{alias} at {level}"
    entry = copy.deepcopy(connections.settings[alias])
    entry["OPTIONS"]["isolation_level"] = level if alias == "mariadb" else _POSTGRES_LEVELS[level]
    connections.settings[other] = entry
    try:
        yield other
    finally:
        connections[other].close()
        del connections[other]
        del connections.settings[other]


# The numbers of psycopg's IsolationLevel.
_POSTGRES_LEVELS = {"read committed": 2, "repeatable read": 3, "serializable": 4}


def _wait_until_ready(connection):
    deadline = time.monotonic() + 30
    while True:
        try:
            return connection.ensure_connection()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(scope="session")
def postgres_database(django_db_setup, django_db_blocker):  # noqa: ARG001 - the set-up comes first
    """The alias of a database on a PostgreSQL of our own."""
    try:
        with postgres.postgres_server() as where, django_db_blocker.unblock():
            entry = {"ENGINE": "django.db.backends.postgresql", **where}
            with alias_for("postgres", entry) as alias:
                yield alias
    except postgres.UnavailableError as why:
        pytest.skip(f"not tested on PostgreSQL: {why}")


@pytest.fixture(scope="session")
def mariadb_database(django_db_setup, django_db_blocker):  # noqa: ARG001 - the set-up comes first
    """The alias of a database on a MariaDB of our own."""
    try:
        with mariadb.mariadb_server() as where, django_db_blocker.unblock():
            entry = {"ENGINE": "django.db.backends.mysql", **where}
            with alias_for("mariadb", entry) as alias:
                yield alias
    except mariadb.UnavailableError as why:
        pytest.skip(f"not tested on MariaDB: {why}")


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.django_db(transaction=True)),
        "postgres",
        "mariadb",
    ]
)
def database(request):
    """The alias of an empty database, on each kind of server."""
    if request.param == "sqlite":
        yield "default"
        return
    alias = request.getfixturevalue(f"{request.param}_database")
    with request.getfixturevalue("django_db_blocker").unblock():
        yield alias
        empty(alias)
        connections[alias].close()


def empty(alias: str) -> None:
    """Delete every row of our models."""
    for label in ("syncguard_django", "testsite"):
        for model in apps.get_app_config(label).get_models():
            if model._meta.managed:
                model._base_manager.using(alias).all().delete()
