"""Faults: servers that are killed, connections that are cut, replies that never come."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from wait_until import wait_until

from syncguard import (
    Acquisition,
    Internal,
    InvalidArgument,
    LockError,
    NetworkTimeout,
    ServiceUnavailable,
    lock,
)
from syncguard.backend import Refusal
from syncguard.postgres import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE, PostgresBackend
from syncguard.testing import PostgresServer

LONG_MS = 600_000


def counter(sql):
    return sql(f"SELECT fence FROM {DEFAULT_FENCES_TABLE}")


def test_locks_and_fences_survive_a_server_that_was_killed(backend, syncguard_postgres):
    kept, released = backend.acquire("kept", LONG_MS), backend.acquire("released", LONG_MS)
    released.release()
    syncguard_postgres.kill()
    with pytest.raises(ServiceUnavailable):
        backend.acquire("kept", LONG_MS)
    syncguard_postgres.restart()
    assert not backend.acquire("kept", LONG_MS).ok
    assert backend.acquire("released", LONG_MS).fence > released.fence
    assert kept.release().ok


def test_an_idle_connection_that_the_server_closed_is_replaced(backend, syncguard_postgres):
    held = backend.acquire("k", LONG_MS)
    syncguard_postgres.restart()
    assert backend.is_locked("k")
    syncguard_postgres.restart()
    assert held.release().ok


def test_an_acquire_whose_reply_was_lost_is_sent_again_and_has_the_stored_fence(
    relay, backend_at, sql
):
    backend = backend_at(relay.url)
    backend.is_locked("k")  # connects, so that only the reply to the acquire is lost
    relay.cut_next_reply()
    held = backend.acquire("k", LONG_MS)
    assert relay.was_cut.is_set()
    assert held.ok
    assert counter(sql) == [(1,)]
    assert held.release().ok


def test_a_release_whose_reply_was_lost_is_assumed(relay, backend_at):
    backend = backend_at(relay.url)
    held = backend.acquire("k", LONG_MS)
    relay.cut_next_reply()
    result = backend.release(held.lock_id)
    assert relay.was_cut.is_set()
    assert (result.ok, result.assumed) == (True, True)
    assert not backend.is_locked("k")


def test_a_doubtful_acquire_is_undone_in_the_background(relay, backend_at, syncguard_postgres, sql):
    backend = backend_at(relay.url)
    backend.is_locked("k")  # connects, so that the server gets the acquire
    relay.is_mute = True
    with pytest.raises(NetworkTimeout):
        backend.acquire("k", LONG_MS)
    wait_until(lambda: counter(sql) == [(1,)])  # the server executed the request
    relay.is_mute = False
    with PostgresBackend.from_url(syncguard_postgres.url) as other:
        wait_until(lambda: not other.is_locked("k"), within_s=60)


def test_a_grant_that_arrives_after_its_ttl_is_no_grant(backend, monkeypatch, sql):
    clock = iter(range(0, 10**9, 100_000))  # 100 seconds pass between two looks at the clock
    for name in ("postgres_backend", "postgres_backend_async"):
        monkeypatch.setattr(f"syncguard.postgres.{name}.holder_clock_ms", lambda: next(clock))
    assert not backend.acquire("k", 60_000).ok
    wait_until(lambda: sql(f"SELECT expires_at_ms FROM {DEFAULT_LOCKS_TABLE}") == [(0,)])
    held = backend.acquire("k", LONG_MS)
    assert held.ok
    assert not backend.adopt(held.lock_id, 60_000).ok
    wait_until(lambda: sql(f"SELECT expires_at_ms FROM {DEFAULT_LOCKS_TABLE}") == [(0,)])


def test_an_undone_acquire_that_arrives_later_gets_nothing(blocking, sql):
    call = blocking._calls.acquire("k", LONG_MS, None)
    blocking.undo(call.lock_id)
    # No row of this key: the insert finds that the id is spent.
    assert isinstance(blocking._runner.run(call), Refusal)
    assert not blocking.is_locked("k")
    # A row that is free: the update would store the id twice.
    blocking.acquire("k", LONG_MS).release()
    with pytest.raises(Internal):
        blocking._runner.run(call)
    assert not blocking.is_locked("k")
    assert sql(f"SELECT count(*) FROM {DEFAULT_LOCKS_TABLE} WHERE expires_at_ms > 0") == [(0,)]
    assert blocking.acquire("k", LONG_MS).ok


def test_an_undo_waits_for_the_request_that_is_being_executed(blocking, syncguard_postgres, sql):
    call = blocking._calls.acquire("k", LONG_MS, None)
    with syncguard_postgres.connect() as slow, ThreadPoolExecutor() as threads:
        with slow.transaction():
            params = [None if value is None else value.decode() for value in call.params]
            name = f"{DEFAULT_LOCKS_TABLE}_acquire"
            types = [*["text"] * 5, *["bigint"] * 3, "boolean", *["bigint"] * 2]
            marks = ", ".join(f"%s::{kind}" for kind in types)
            ((outcome, *_),) = slow.execute(f"SELECT * FROM {name}({marks})", params).fetchall()
            assert outcome == "acquired"
            undoing = threads.submit(blocking.undo, call.lock_id)
            wait_until(
                lambda: (
                    undoing.done()
                    or sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                )
            )
        undoing.result()
    wait_until(lambda: not blocking.is_locked("k"))


def test_the_deadline_of_lock_bounds_a_server_that_does_not_answer(relay, syncguard_postgres):
    with PostgresBackend.from_url(relay.url, timeout_ms=600_000) as backend:
        backend.is_locked("k")
        relay.is_mute = True
        began = time.monotonic()
        with pytest.raises(NetworkTimeout):
            with lock(backend, "k", LONG_MS, acquisition=Acquisition(timeout_ms=300)):
                pytest.fail("nobody answered")
        assert time.monotonic() - began < 60
        relay.is_mute = False
    with PostgresBackend.from_url(syncguard_postgres.url) as other:
        wait_until(lambda: not other.is_locked("k"), within_s=60)


def test_busy_connections_are_rate_limited(syncguard_postgres):
    with PostgresBackend.from_url(
        syncguard_postgres.url, max_connections=1, timeout_ms=3_000
    ) as backend:
        backend._runner._slots.acquire()
        with pytest.raises(LockError, match="max_connections") as caught:
            backend.is_locked("k")
        assert caught.value.code == "RateLimited"
        backend._runner._timeout_ms = 60_000
        backend._runner._slots.release()
        assert not backend.is_locked("k")


def test_the_first_server_that_accepts_is_used(backend_at, syncguard_postgres):
    port, user = syncguard_postgres.port, syncguard_postgres.user
    backend = backend_at(f"postgresql://{user}@127.0.0.1:1,127.0.0.1:{port}/postgres")
    assert backend.acquire("k", LONG_MS).ok


def test_a_forked_child_opens_its_own_connection(blocking):
    held = blocking.acquire("k", LONG_MS)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if blocking.is_locked("k") and blocking.acquire("child", LONG_MS).ok else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    # The child did not close or use the connection of the parent.
    assert blocking.is_locked("child")
    assert held.release().ok


@pytest.mark.rounds
@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_eight_processes_lose_no_update_and_fences_increase_in_the_order_of_the_writes(
    syncguard_postgres, tmp_path, way, request
):
    url = syncguard_postgres.url if way == "direct" else request.getfixturevalue("pgbouncer").url
    counter, log = tmp_path / "counter", tmp_path / "log"
    counter.write_text("0")
    log.write_text("")
    program = Path(__file__).with_name("ledger_worker.py")
    workers = [
        subprocess.Popen([sys.executable, program, url, str(tmp_path), "200"]) for _ in range(8)
    ]
    assert [worker.wait() for worker in workers] == [0] * 8
    fences = log.read_text().split()
    assert int(counter.read_text()) == 1600, "an update was lost"
    assert len(fences) == 1600
    assert fences == sorted(set(fences)), "a later write carried an earlier fence"


def test_a_setting_of_another_kind_is_refused_before_any_connection():
    for options in (
        {"max_connections": 0},
        {"timeout_ms": 0},
        {"no_such_option": "x"},
        {"sslmode": ["require"]},
        {"connect_timeout": "soon"},
    ):
        with pytest.raises(InvalidArgument):
            PostgresBackend.from_url("postgresql://127.0.0.1:1/x", **options)


@pytest.fixture
def runs_after_the_test(syncguard_postgres_server):
    yield
    assert syncguard_postgres_server.is_running


@pytest.mark.usefixtures("runs_after_the_test")  # ends after the fixture that the test kills
def test_a_killed_server_runs_again_after_the_test(syncguard_postgres):
    syncguard_postgres.kill()


@pytest.mark.usefixtures("syncguard_postgres_server")  # skipped where there is no PostgreSQL
def test_a_restart_waits_for_the_processes_of_the_killed_server():
    with PostgresServer() as server, contextlib.closing(server.connect()) as connection:
        log = server.folder / "log"
        ((backend_pid,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        os.kill(backend_pid, signal.SIGSTOP)  # it cannot notice that its server is gone
        try:
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: not server.is_running)
            with ThreadPoolExecutor(1) as threads:
                restart = threads.submit(server.restart)
                wait_until(lambda: "shared memory" in log.read_text() or restart.done())
                os.kill(backend_pid, signal.SIGCONT)
                restart.result()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend_pid, signal.SIGCONT)
        with server.connect() as again:
            assert again.execute("SELECT 1").fetchall() == [(1,)]
