"""Locks in the database of the project: ``DATABASE``, the tables, and its transactions."""

from __future__ import annotations

import io
from contextlib import contextmanager, suppress

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from temporary_databases import run as run_sql
from testsite import visits

from syncguard import AuthFailed, LockError
from syncguard.postgres import PostgresBackend
from syncguard_django import alocks, lock, locks
from syncguard_django.configured_backends import Locks
from syncguard_django.store_setup import check_tables

TABLES = ("syncguard_py_locks", "syncguard_py_fences")
LONG_MS = 60_000

pytestmark = [pytest.mark.slow]


def output_of(*command):
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


@pytest.fixture
def without_tables(locks_in_postgres):
    for table in TABLES:
        run_sql(locks_in_postgres, f"DROP TABLE {table} CASCADE")
    yield locks_in_postgres
    locks["default"].setup()


def warnings_of(database):
    messages = run_checks(databases=[database])
    return [message for message in messages if message.id == "syncguard.W007"]


def test_the_address_comes_from_databases(locks_in_postgres):
    assert isinstance(locks["default"], PostgresBackend)
    assert locks["default"].acquire("from-databases", LONG_MS)
    ((rows,),) = run_sql(locks_in_postgres, "SELECT count(*) FROM syncguard_py_locks")
    assert rows >= 1


def test_a_rolled_back_transaction_does_not_undo_a_lock(locks_in_postgres):
    with pytest.raises(ZeroDivisionError), transaction.atomic(locks_in_postgres):
        assert locks["default"].acquire("rolled-back", LONG_MS)
        raise ZeroDivisionError
    assert locks["default"].is_locked("rolled-back")


def test_a_lock_is_visible_to_others_before_the_commit(locks_in_postgres):
    others = Locks()
    with transaction.atomic(locks_in_postgres):
        assert locks["default"].acquire("visible", LONG_MS)
        assert not others["default"].acquire("visible", LONG_MS)
    others.reset()


def test_an_aborted_transaction_does_not_disturb_a_lock(locks_in_postgres):
    """After an error, PostgreSQL refuses every statement of the project's own transaction."""
    with transaction.atomic(locks_in_postgres):
        with connections[locks_in_postgres].cursor() as cursor:
            with pytest.raises(Exception, match="division by zero"):
                cursor.execute("SELECT 1 / 0")
        assert locks["default"].acquire("aborted", LONG_MS)
        transaction.set_rollback(True, using=locks_in_postgres)


def test_the_status_command_lists_them(locks_in_postgres):  # noqa: ARG001
    with lock("listed", LONG_MS, holder="web-1"):
        assert "web-1" in output_of("syncguard_status")


def test_the_status_command_reports_the_health_of_the_server(locks_in_postgres):  # noqa: ARG001
    out = io.StringIO()
    with suppress(SystemExit):  # the server of the tests runs without fsync, which is a finding
        call_command("syncguard_status", "--check", stdout=out)
    assert "PostgreSQL" in out.getvalue()
    assert "woken by NOTIFY" in out.getvalue()


@pytest.mark.django_db
def test_the_admin_lists_finds_and_releases_a_lock(locks_in_postgres):  # noqa: ARG001
    backend = locks["default"]
    client = visits.visitor("view_lock", "release_lock")
    assert backend.acquire("in-the-admin", LONG_MS, holder="worker-7").ok
    assert backend.hash("in-the-admin") in visits.rows(client)
    assert "worker-7" in visits.page(client)
    holder = visits.holder_of(backend.lookup(key="in-the-admin"))
    freed = visits.post(client, visits.RELEASE, **holder)
    assert "Released the lock" in visits.message_after(client, freed)
    assert not backend.is_locked("in-the-admin")


@pytest.mark.asyncio
async def test_asyncio_uses_the_same_database(locks_in_postgres):  # noqa: ARG001
    acquired = await alocks["default"].acquire("asyncio", LONG_MS)
    assert acquired.ok
    await acquired.release()


def test_migrate_creates_the_tables(without_tables):
    call_command("migrate", database=without_tables, verbosity=0)
    assert locks["default"].acquire("migrated", LONG_MS)


def test_migrate_of_another_database_does_not(without_tables):  # noqa: ARG001
    call_command("migrate", database="default", verbosity=0)
    with pytest.raises(LockError, match="does not have the tables"):
        locks["default"].acquire("other", LONG_MS)


def test_missing_tables_are_named_by_the_checks(without_tables):
    (warning,) = warnings_of(without_tables)
    assert "syncguard_setup --using default" in warning.hint
    locks["default"].setup()
    assert warnings_of(without_tables) == []


def test_an_empty_database_gets_no_warning_before_its_first_migrate(without_tables):
    """``migrate`` runs the checks first, and then creates the tables itself."""
    run_sql(without_tables, "ALTER TABLE django_migrations RENAME TO migrations_for_later")
    try:
        assert warnings_of(without_tables) == []
    finally:
        run_sql(without_tables, "ALTER TABLE migrations_for_later RENAME TO django_migrations")


def test_the_setup_command_creates_the_tables(without_tables):  # noqa: ARG001
    assert output_of("syncguard_setup") == "default: tables are ready\n"
    assert locks["default"].acquire("set-up", LONG_MS)
    assert output_of("syncguard_setup", "--using", "default") == "default: tables are ready\n"


def test_a_dry_run_prints_the_sql_and_executes_nothing(without_tables):
    printed = output_of("syncguard_setup", "--dry-run")
    assert all(f'CREATE TABLE IF NOT EXISTS "{table}"' in printed for table in TABLES)
    assert warnings_of(without_tables)


def test_what_the_dry_run_prints_can_be_executed(without_tables):
    run_sql(without_tables, output_of("syncguard_setup", "--dry-run").replace("%", "%%"))
    assert locks["default"].acquire("by-hand", LONG_MS)


def test_the_setup_command_needs_a_server_that_answers(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": "postgresql://127.0.0.1:1/none"}}
    with pytest.raises(CommandError, match="default: ServiceUnavailable") as raised:
        call_command("syncguard_setup")
    assert raised.value.returncode == 2


def test_a_redis_needs_no_setup(backend):  # noqa: ARG001
    assert output_of("syncguard_setup") == "default: nothing to set up\n"
    assert output_of("syncguard_setup", "--dry-run") == "-- default\n-- nothing to set up\n"


def test_migrate_leaves_tables_alone_that_another_role_made(locks_in_postgres, role_without_tables):
    """An administrator created them; the role of the project may use them, and not replace them."""
    out = io.StringIO()
    with role_without_tables():
        call_command("migrate", database=locks_in_postgres, verbosity=1, stdout=out)
    assert "may not update" in out.getvalue()


def test_migrate_fails_if_it_cannot_create_the_tables(without_tables, role_without_tables):
    with role_without_tables(), pytest.raises(AuthFailed, match="lacks a permission"):
        call_command("migrate", database=without_tables, verbosity=0)


@pytest.fixture
def role_without_tables(locks_in_postgres):
    """During the block, the project logs in as a role that may not create or own a table."""
    entry = connections.settings[locks_in_postgres]
    owner = entry["USER"]
    run_sql(locks_in_postgres, "CREATE ROLE tenant LOGIN")
    run_sql(locks_in_postgres, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    run_sql(locks_in_postgres, "GRANT ALL ON ALL TABLES IN SCHEMA public TO tenant")
    run_sql(locks_in_postgres, "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO tenant")

    def log_in_as(user):
        connections[locks_in_postgres].close()
        entry["USER"] = user
        locks.reset()

    @contextmanager
    def as_tenant():
        log_in_as("tenant")
        try:
            yield
        finally:
            log_in_as(owner)

    yield as_tenant
    run_sql(locks_in_postgres, "DROP OWNED BY tenant")
    run_sql(locks_in_postgres, "DROP ROLE tenant")


def test_a_database_that_is_down_is_a_warning_and_no_traceback(locks_in_postgres, monkeypatch):
    monkeypatch.setitem(connections.settings[locks_in_postgres], "PORT", "1")
    connections[locks_in_postgres].close()
    locks.reset()
    (warning,) = check_tables(databases=[locks_in_postgres])
    assert "cannot reach it" in warning.msg


def test_a_test_runner_can_drop_its_database_after_a_test_with_locks(locks_in_postgres):
    """PostgreSQL refuses to drop a database that somebody is connected to."""
    creation = connections[locks_in_postgres].creation
    name = connections[locks_in_postgres].settings_dict["NAME"]
    creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        with lock("in-a-test", LONG_MS):
            assert locks["default"].is_locked("in-a-test")
    finally:
        creation.destroy_test_db(name, verbosity=0)


@pytest.fixture
def renamed(locks_in_postgres):
    """Another database on the server, under the same alias, as a test runner does it."""
    entry = connections.settings[locks_in_postgres]
    name = entry["NAME"]
    run_sql(locks_in_postgres, 'CREATE DATABASE "test_other"')

    def rename():
        connections[locks_in_postgres].close()
        entry["NAME"] = "test_other"

    yield rename
    locks.reset()
    connections[locks_in_postgres].close()
    entry["NAME"] = name
    run_sql(locks_in_postgres, 'DROP DATABASE "test_other"')


def test_the_locks_follow_the_name_of_the_test_database(renamed):
    before = locks["default"]
    assert before.acquire("renamed", LONG_MS)
    renamed()
    with pytest.raises(LockError, match="does not have the tables"):
        locks["default"].is_locked("renamed")
    locks["default"].setup()
    assert not locks["default"].is_locked("renamed")
    assert "No live locks" in output_of("syncguard_status")
