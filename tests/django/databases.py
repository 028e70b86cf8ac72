"""The test site's tables on each kind of database: SQLite, and servers that the tests start.

A database has an alias while its server runs. If a server is not installed, the tests that need it
are skipped with a message that names it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connections, models, transaction
from temporary_databases import temporary_database

from syncguard_django import locks


@contextmanager
def migrated(alias: str, settings: dict[str, object]) -> Iterator[str]:
    """Register the database in Django under this alias, and create all tables."""
    with temporary_database(alias, settings):
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        start_sequences_beyond_the_ids_of_tests(alias)
        connections[alias].close()
        yield alias


def start_sequences_beyond_the_ids_of_tests(alias: str) -> None:
    """A test that chooses the id 7 must not meet a row to which PostgreSQL gave the id 7."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return  # The others give the highest id plus one.
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(sequencename) FROM pg_sequences")
        for (name,) in cursor.fetchall():
            cursor.execute(f"ALTER SEQUENCE {name} RESTART WITH 1000000")


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


@pytest.fixture(scope="session")
def postgres_database(django_db_setup, django_db_blocker, postgres_settings):  # noqa: ARG001
    """The alias of a database on a PostgreSQL of our own, with all tables."""
    with django_db_blocker.unblock(), migrated("postgres", postgres_settings) as alias:
        yield alias


@pytest.fixture
def locks_in_postgres(postgres_database, settings, django_db_blocker):
    """The alias of a database on PostgreSQL that also has the locks of the test site."""
    settings.SYNCGUARD = {
        "default": {
            "BACKEND": "syncguard.postgres.PostgresBackend",
            "DATABASE": postgres_database,
            "KEY_PREFIX": "testsite",
        }
    }
    with django_db_blocker.unblock():
        locks["default"].setup()
        yield postgres_database
        locks.reset()
        connections[postgres_database].close()


@pytest.fixture(scope="session")
def mariadb_database(django_db_setup, django_db_blocker, mariadb_settings):  # noqa: ARG001
    """The alias of a database on a MariaDB of our own, with all tables."""
    at_djangos_isolation = {**mariadb_settings, "OPTIONS": {}}
    with django_db_blocker.unblock(), migrated("mariadb", at_djangos_isolation) as alias:
        yield alias


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.django_db(transaction=True)),
        pytest.param("postgres", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
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


def is_a_transaction_blocked(connection) -> bool:
    """Whether a transaction on the server waits for another one."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITS[connection.vendor])
        return bool(cursor.fetchone()[0])


_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mysql": "SELECT variable_value + 0 FROM information_schema.global_status"
    " WHERE variable_name = 'innodb_row_lock_current_waits'",
}


def empty(alias: str) -> None:
    """Delete every row of our models, with one statement for each table."""
    with transaction.atomic(using=alias):
        for model in tables():
            model._base_manager.using(alias).all()._raw_delete(alias)


@cache
def tables() -> list[type[models.Model]]:
    """Our models that have a table, each before those that its rows refer to."""
    found = [
        model
        for label in ("syncguard_django", "testsite")
        for model in apps.get_app_config(label).get_models(include_auto_created=True)
        if model._meta.managed
    ]
    found.reverse()
    return sorted(found, key=lambda model: not model._meta.auto_created)
