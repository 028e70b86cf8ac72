"""The tables: their columns, their storage, their names, and how they are made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from wait_until import wait_until

from syncguard import InvalidArgument, NetworkTimeout
from syncguard.postgres import (
    DEFAULT_FENCES_TABLE,
    DEFAULT_LOCKS_TABLE,
    PostgresBackend,
    Tables,
    drop_sql,
)
from syncguard.postgres.backend_config import SETUP_LOCK

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


@pytest.fixture
def empty_database(syncguard_postgres, sql):
    """The URL of a database without tables."""
    sql("CREATE DATABASE without_tables")
    yield syncguard_postgres.url.replace("/postgres", "/without_tables")
    sql("DROP DATABASE without_tables WITH (FORCE)")


def test_the_two_tables_have_the_specified_columns(sql):
    columns = sql(
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
        " WHERE table_name = ANY(%s)",
        ([DEFAULT_LOCKS_TABLE, DEFAULT_FENCES_TABLE],),
    )
    assert set(columns) == {
        (DEFAULT_LOCKS_TABLE, "key", "text", "NO"),
        (DEFAULT_LOCKS_TABLE, "lock_id", "text", "NO"),
        (DEFAULT_LOCKS_TABLE, "expires_at_ms", "bigint", "NO"),
        (DEFAULT_LOCKS_TABLE, "acquired_at_ms", "bigint", "NO"),
        (DEFAULT_LOCKS_TABLE, "fence", "text", "NO"),
        (DEFAULT_LOCKS_TABLE, "user_key", "text", "NO"),
        (DEFAULT_LOCKS_TABLE, "holder", "text", "YES"),
        (DEFAULT_LOCKS_TABLE, "waiting_until_ms", "bigint", "NO"),
        (DEFAULT_FENCES_TABLE, "fence_key", "text", "NO"),
        (DEFAULT_FENCES_TABLE, "fence", "bigint", "NO"),
    }


def test_only_the_names_are_indexed_so_that_a_heartbeat_changes_no_index(sql):
    indexes = sql(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass",
        (DEFAULT_LOCKS_TABLE,),
    )
    assert len(indexes) == 2
    assert all("UNIQUE" in text for (text,) in indexes)
    assert {text.split("(")[1] for (text,) in indexes} == {"key)", "lock_id)"}


def test_text_that_decides_identity_has_the_collation_c(sql):
    collations = sql(
        "SELECT column_name, collation_name FROM information_schema.columns"
        " WHERE table_name = ANY(%s) AND column_name = ANY(%s)",
        ([DEFAULT_LOCKS_TABLE, DEFAULT_FENCES_TABLE], ["key", "lock_id", "fence_key", "user_key"]),
    )
    assert len(collations) == 4
    assert {name for _, name in collations} == {"C"}


def test_half_of_each_page_of_the_locks_is_free_and_autovacuum_is_set(sql):
    options = dict(sql("SELECT relname, reloptions FROM pg_class WHERE relname LIKE 'syncguard%'"))
    assert "fillfactor=50" in options[DEFAULT_LOCKS_TABLE]
    for table in (DEFAULT_LOCKS_TABLE, DEFAULT_FENCES_TABLE):
        assert any(option.startswith("autovacuum_") for option in options[table])


def test_heartbeats_are_heap_only_updates(blocking, sql):
    def counts():
        sql("SELECT pg_stat_clear_snapshot()")
        return sql(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s",
            (DEFAULT_LOCKS_TABLE,),
        )[0]

    lock = blocking.acquire("k", 60_000)
    updated_before, heap_only_before = counts()
    for _ in range(300):
        assert lock.extend(60_000).ok
    blocking.close()  # the statistics of a session are complete when it ends
    sql("SELECT pg_stat_force_next_flush()")
    wait_until(lambda: counts()[0] - updated_before >= 300)
    # A page that is full costs an update that is not heap-only, from time to time.
    assert counts()[1] - heap_only_before >= 250


def test_operations_make_no_tables_and_say_what_to_run(backend_at, empty_database):
    backend = backend_at(empty_database)
    for operation in (
        lambda: backend.acquire("k", 1_000),
        lambda: backend.is_locked("k"),
        lambda: backend.live_locks(),
    ):
        with pytest.raises(InvalidArgument, match=r"run the migrations, or call setup\(\)"):
            operation()


def test_a_missing_schema_is_named_by_operations_and_by_setup(backend_at, empty_database):
    names = {"locks_table": "locking.locks", "fences_table": "locking.fences"}
    backend = backend_at(empty_database, **names)
    for operation in (
        lambda: backend.acquire("k", 1_000),
        PostgresBackend.from_url(empty_database, **names).setup,
    ):
        with pytest.raises(InvalidArgument, match="schema of the tables: create it") as caught:
            operation()
        assert "locking" not in str(caught.value)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA locking")
    PostgresBackend.from_url(empty_database, **names).setup()
    assert backend.acquire("k", 60_000).ok


def test_setup_can_be_called_twice_and_by_several_at_the_same_time(empty_database):
    with PostgresBackend.from_url(empty_database) as backend:
        assert not backend.is_set_up()
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(backend.setup) for _ in range(4)]:
                done.result()
        assert backend.is_set_up()
        lock = backend.acquire("k", 60_000)
        backend.setup()
        assert lock.release().ok


def test_setup_does_not_wait_for_ever_for_another_setup(empty_database, monkeypatch):
    monkeypatch.setattr("syncguard.postgres.backend_config.SETUP_TIMEOUT_MS", 100)
    with psycopg.connect(empty_database) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        with PostgresBackend.from_url(empty_database) as backend, pytest.raises(NetworkTimeout):
            backend.setup()


def test_the_setup_is_available_as_text_and_can_be_reverted(empty_database):
    with PostgresBackend.from_url(empty_database) as backend:
        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute(backend.setup_sql)
            assert backend.is_set_up()
            assert backend.acquire("k", 60_000).ok
            connection.execute(drop_sql(backend.tables))
        assert not backend.is_set_up()


def test_other_tables_are_other_locks(make_backend, syncguard_postgres):
    names = {"locks_table": "other_locks", "fences_table": "public.other_fences"}
    with PostgresBackend.from_url(syncguard_postgres.url, **names) as setup:
        setup.setup()
    assert make_backend().acquire("k", 60_000).ok
    lock = make_backend(**names).acquire("k", 60_000)
    assert lock.ok
    lock.release()


@pytest.mark.parametrize(
    "name",
    ["", "1st", "UPPER", "a-b", 'a"b', "a;b", "a b", "a.b.c", "é", "x" * 60, None, 7, "a\0b"],
    ids=ascii,
)
@pytest.mark.parametrize("option", ["locks_table", "fences_table"])
def test_a_name_that_is_no_plain_identifier_is_refused(option, name):
    with pytest.raises(InvalidArgument, match=option):
        PostgresBackend.from_url(NOWHERE, **{option: name})


def test_the_two_tables_are_never_the_same():
    with pytest.raises(InvalidArgument, match="two different tables"):
        Tables("locks", "locks")


@pytest.mark.parametrize("name", ["syncguard_locks", "app.syncguard_fence_counters"])
def test_the_tables_of_the_typescript_library_are_refused(name):
    assert name not in (DEFAULT_LOCKS_TABLE, DEFAULT_FENCES_TABLE)
    with pytest.raises(InvalidArgument, match="TypeScript"):
        Tables(name, "fences")


def test_the_longest_name_is_1700_bytes_and_a_longer_one_is_hashed(make_backend, sql):
    backend = make_backend(key_prefix="p" * 1600)
    locks = [backend.acquire("k" * 99, 60_000), backend.acquire("k" * 100, 60_000)]
    lengths = sql(f"SELECT octet_length(key) FROM {DEFAULT_LOCKS_TABLE} ORDER BY 1")
    assert lengths == [(1600 + 1 + 22,), (1700,)]
    assert [info.key for info in backend.page_raw().locks] == ["k" * 99, "k" * 100]
    for lock in locks:
        assert lock.extend(60_000).ok
        assert lock.release().ok


def test_the_prefix_may_be_empty(make_backend, sql):
    backend = make_backend(key_prefix="")
    backend.acquire("k", 60_000)
    assert sql(f"SELECT key FROM {DEFAULT_LOCKS_TABLE}") == [("k",)]
    assert sql(f"SELECT fence_key FROM {DEFAULT_FENCES_TABLE}") == [("fence:k",)]
    assert backend.count_live_locks() == 1


def test_the_fence_key_is_derived_in_two_steps(backend, sql):
    backend.acquire("k", 60_000)
    assert sql(f"SELECT fence_key FROM {DEFAULT_FENCES_TABLE}") == [
        ("syncguard:fence:syncguard:k",)
    ]


def test_a_list_shows_only_the_locks_of_its_own_prefix(make_backend):
    make_backend(key_prefix="app").acquire("k", 60_000)
    make_backend(key_prefix="app:more").acquire("k", 60_000)
    make_backend(key_prefix="application").acquire("k", 60_000)
    backend = make_backend(key_prefix="app")
    assert [info.key for info in backend.page_raw().locks] == ["k"]
    assert [info.key for info in backend.find_raw(lambda _info: True, 9)] == ["k"]
