"""Faults of the backends that need no Redis: PostgreSQL, SQLite, and the memory of a process."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from random import Random

from history.fault import Fault, Workers
from history.faults_of_redis import WorkersKilled, WorkersStopped
from history.stores_of_sql import (
    MemoryStore,
    PostgresBehindRelay,
    PostgresStore,
    PostgresWithStandby,
    SQLiteStore,
)
from syncguard.postgres.statements import LOCK_TIMEOUT_MS

# -- PostgreSQL -----------------------------------------------------------------------------------


class Postgres(Fault[PostgresStore]):
    name = "PostgreSQL, no fault"
    make_store = PostgresStore

    def strike(self, *_: object) -> None: ...


class PostgresKilled(Fault[PostgresStore]):
    """kill -9 for all processes of the server, and a restart."""

    name = "PostgreSQL killed -9"
    make_store = PostgresStore
    strikes = 2
    min_seconds = 10.0

    def strike(self, store: PostgresStore, _workers: Workers, random: Random, ttl_ms: int) -> None:
        store.server.kill()
        time.sleep(random.uniform(0, 1.2) * ttl_ms / 1000)
        store.server.restart()


class PostgresCut(Fault[PostgresBehindRelay]):
    """All connections close, some in the middle of a reply."""

    name = "PostgreSQL, proxy cuts connections"
    make_store = PostgresBehindRelay
    strikes = 10

    def strike(self, store: PostgresBehindRelay, _workers: Workers, random: Random, _: int) -> None:
        with store.relay.doing("cut replies"):
            time.sleep(random.uniform(0, 0.03))
            store.relay.cut_all()


class PostgresTableLocked(Fault[PostgresStore]):
    """Another session locks the table, for less and for more than a TTL."""

    name = "PostgreSQL, table locked by another session"
    make_store = PostgresStore

    def strike(self, store: PostgresStore, _workers: Workers, random: Random, ttl_ms: int) -> None:
        with store.server.connect() as connection, connection.transaction():
            connection.execute(f"LOCK TABLE {store.table} IN ACCESS EXCLUSIVE MODE")
            time.sleep(random.uniform(0.1, 2.0) * ttl_ms / 1000)


class PostgresTimeouts(Fault[PostgresStore]):
    """Statements that end with statement_timeout, and rows locked for longer than lock_timeout."""

    name = "PostgreSQL, lock and statement time-outs"
    make_store = PostgresStore
    strikes = 3
    min_seconds = 15.0

    def strike(self, store: PostgresStore, _workers: Workers, random: Random, ttl_ms: int) -> None:
        with store.server.connect() as connection:
            connection.execute("SET statement_timeout = 0")
            if random.random() < 0.5:
                with connection.transaction():
                    connection.execute(f"SELECT 1 FROM {store.table} FOR UPDATE")  # noqa: S608
                    time.sleep(LOCK_TIMEOUT_MS / 1000 + random.uniform(0.1, 1.0))
                return
            for value in (f"{random.choice((1, 2, 5))}ms", "0"):
                connection.execute(f"ALTER SYSTEM SET statement_timeout = '{value}'")
                connection.execute("SELECT pg_reload_conf()")
                time.sleep(random.uniform(0.2, 1.5) * ttl_ms / 1000)


class PostgresConflicts(Fault[PostgresStore]):
    """Writes to the locks fail now and then: serialization failures, deadlocks, duplicate keys."""

    name = "PostgreSQL, serialization conflicts"
    make_store = PostgresStore
    explained_errors = ("Internal",)  # a duplicate key that comes again and again

    def strike(self, store: PostgresStore, _workers: Workers, random: Random, ttl_ms: int) -> None:
        state = random.choice(("40001", "40P01", "23505"))
        with store.server.connect() as connection:
            connection.execute(
                f"""CREATE OR REPLACE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF random() < {random.choice((0.1, 0.5, 0.9))} THEN
                        RAISE EXCEPTION 'a conflict' USING ERRCODE = '{state}';
                    END IF;
                    RETURN NEW;
                END $$"""
            )
            connection.execute(
                f"CREATE TRIGGER conflict BEFORE INSERT OR UPDATE ON {store.table}"
                " FOR EACH ROW EXECUTE FUNCTION conflict()"
            )
            time.sleep(random.uniform(0.2, 2.0) * ttl_ms / 1000)
            connection.execute(f"DROP TRIGGER conflict ON {store.table}")


class PostgresPromoted(Fault[PostgresWithStandby]):
    """The primary is killed, and its standby, which had every commit, takes over."""

    name = "PostgreSQL, synchronous standby promoted"
    strikes = 1
    min_seconds = 10.0

    @staticmethod
    def make_store() -> PostgresWithStandby:
        return PostgresWithStandby(is_synchronous=True)

    def strike(
        self, store: PostgresWithStandby, _workers: Workers, random: Random, ttl_ms: int
    ) -> None:
        store.fail_over(random.uniform(0, 1.2) * ttl_ms / 1000)


class PostgresPromotedAsync(PostgresPromoted):
    """The standby may lack the last commits: locks and fences can be repeated."""

    name = "PostgreSQL, asynchronous standby promoted"
    keeps_data = False

    @staticmethod
    def make_store() -> PostgresWithStandby:
        return PostgresWithStandby(is_synchronous=False)


class PostgresPromotedWithFloor(PostgresPromoted):
    """The same with a fence floor: locks can be lost, and fences still increase."""

    name = 'PostgreSQL, asynchronous standby promoted, fence_floor="clock"'
    keeps_data = False

    @staticmethod
    def make_store() -> PostgresWithStandby:
        return PostgresWithStandby(is_synchronous=False, fence_floor="clock")


class PostgresWorkersStopped(WorkersStopped):
    name = "PostgreSQL, worker stopped longer than its TTL"
    make_store = PostgresStore


# -- SQLite ---------------------------------------------------------------------------------------


class SQLite(Fault[SQLiteStore]):
    name = "SQLite, no fault"
    make_store = SQLiteStore

    def strike(self, *_: object) -> None: ...


class SQLiteFileLocked(Fault[SQLiteStore]):
    """Another process is in a transaction that writes, for less and for more than a TTL."""

    name = "SQLite, file locked by another process"
    make_store = SQLiteStore

    def strike(self, store: SQLiteStore, _workers: Workers, random: Random, ttl_ms: int) -> None:
        connection = sqlite3.connect(store.path, isolation_level=None, timeout=30)
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(random.uniform(0.1, 2.0) * ttl_ms / 1000)
            connection.execute("ROLLBACK")


class SQLiteWorkersKilled(WorkersKilled):
    name = "SQLite, worker killed -9"
    make_store = SQLiteStore


# -- memory ---------------------------------------------------------------------------------------


class Memory(Fault[MemoryStore]):
    """Threads and an event loop share one store; only the machine is busy."""

    name = "memory, no fault"
    make_store = MemoryStore

    def strike(self, *_: object) -> None: ...
