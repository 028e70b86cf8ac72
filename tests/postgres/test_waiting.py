"""Waiting: who is notified, who listens, and what happens where nobody can listen."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from wait_until import wait_until

from syncguard import Acquisition, aio, lock
from syncguard.postgres import DEFAULT_LOCKS_TABLE, AsyncPostgresBackend, PostgresBackend
from syncguard.postgres.address import Address
from syncguard.postgres.wake_listener import Listener, Subscription

LONG_MS = 60_000
ONLY_WOKEN = Acquisition(max_retries=1, retry_delay_ms=100_000, jitter="none", timeout_ms=120_000)
"""A waiter with this policy acquires the lock in time only if it is woken."""

BACKOFF = Acquisition(max_retries=1_000, retry_delay_ms=20, backoff="fixed", timeout_ms=120_000)


@pytest.fixture
def announced(syncguard_postgres):
    """The payloads that arrived so far on a connection of the test."""
    with syncguard_postgres.connect() as connection:
        connection.execute("LISTEN syncguard")

        def read():
            connection.execute("SELECT 1")
            return [notify.payload for notify in connection.notifies(timeout=0.2)]

        yield read


def listening(sql):
    return sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'syncguard-listen'")


def is_flagged(sql):
    return sql(f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} WHERE waiting_until_ms > 0")


def test_a_release_that_nobody_waits_for_notifies_nobody(backend, announced):
    backend.acquire("k", LONG_MS).release()
    assert announced() == []


def test_a_plain_acquire_leaves_no_flag(backend, announced, sql):
    held = backend.acquire("k", LONG_MS)
    assert not backend.acquire("k", LONG_MS).ok
    assert not is_flagged(sql)
    held.release()
    assert announced() == []


def test_a_release_notifies_a_waiter_with_a_hash_of_the_key(backend, announced):
    held = backend.acquire("secret-invoice", LONG_MS)
    waiter = backend.open_waiter("secret-invoice")
    waiter.attempt(LONG_MS, None, 10_000)
    held.release()
    waiter.close()
    (payload,) = announced()
    assert len(payload) == 22
    assert "secret" not in payload


def test_a_later_waiter_never_shortens_the_flag(backend, sql):
    backend.acquire("k", LONG_MS)
    waiter = backend.open_waiter("k")
    waiter.attempt(LONG_MS, None, 50_000)
    before = sql(f"SELECT waiting_until_ms FROM {DEFAULT_LOCKS_TABLE}")
    waiter.attempt(LONG_MS, None, 10)
    waiter.close()
    assert sql(f"SELECT waiting_until_ms FROM {DEFAULT_LOCKS_TABLE}") == before


def test_a_release_succeeds_although_its_notification_fails(syncguard_postgres, sql):
    sql("CREATE ROLE plain LOGIN")
    sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
    sql("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
    try:
        with PostgresBackend.from_url(syncguard_postgres.url, user="plain") as backend:
            held = backend.acquire("k", LONG_MS)
            waiter = backend.open_waiter("k")
            waiter.attempt(LONG_MS, None, 10_000)
            waiter.close()
            assert held.release().ok
            assert not backend.is_locked("k")
    finally:
        sql("GRANT EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) TO PUBLIC")
        sql("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM plain")
        sql("DROP ROLE plain")


def test_a_waiter_is_woken_by_the_release_of_another_backend(make_backend, blocking, sql):
    held = make_backend().acquire("k", LONG_MS)
    with ThreadPoolExecutor() as threads:

        def wait():
            with lock(blocking, "k", LONG_MS, acquisition=ONLY_WOKEN) as mine:
                return mine.fence

        waiting = threads.submit(wait)
        wait_until(lambda: is_flagged(sql) and Listener.of(blocking._listen_address).is_active)
        held.release()
        assert waiting.result(timeout=60) > held.fence


def test_all_waiters_of_a_process_share_one_listener(syncguard_postgres, sql):
    order = []

    def wait_in_thread(key):
        with PostgresBackend.from_url(syncguard_postgres.url) as backend:
            with lock(backend, key, LONG_MS, acquisition=ONLY_WOKEN):
                order.append(key)

    async def wait_in_task(key):
        async with AsyncPostgresBackend.from_url(syncguard_postgres.url) as backend:
            async with aio.lock(backend, key, LONG_MS, acquisition=ONLY_WOKEN):
                order.append(key)

    with PostgresBackend.from_url(syncguard_postgres.url) as holder:
        held = [holder.acquire(key, LONG_MS) for key in ("a", "b")]
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(wait_in_thread, key) for key in ("a", "a", "b")]
            waiting.append(threads.submit(asyncio.run, wait_in_task("b")))
            listener = Listener.of(holder._listen_address)
            wait_until(lambda: sum(map(len, listener._waiters.values())) == 4)
            wait_until(lambda: listener.is_active)
            # The server may need a moment to end the session of an earlier test.
            wait_until(lambda: len(listening(sql)) == 1)
            for each in held:
                each.release()
            for each in waiting:
                each.result(timeout=100)
    assert sorted(order) == ["a", "a", "b", "b"]
    wait_until(lambda: not listening(sql))


def test_a_waiter_whose_listener_lost_its_connection_is_woken_all_the_same(blocking, sql):
    held = blocking.acquire("k", LONG_MS)
    listener = Listener.of(blocking._listen_address)
    with ThreadPoolExecutor() as threads:

        def wait():
            with lock(blocking, "k", LONG_MS, acquisition=ONLY_WOKEN):
                return True

        waiting = threads.submit(wait)
        wait_until(lambda: is_flagged(sql) and listener.is_active and len(listening(sql)) == 1)
        ((pid,),) = listening(sql)
        sql("SELECT pg_terminate_backend(%s)", (pid,))
        held.release()
        assert waiting.result(timeout=100)


def test_a_waiter_that_comes_while_the_listener_ends_is_listened_for(monkeypatch):
    """It finds the listener started, and does not start it."""
    listener = Listener(Address("postgresql://nobody.invalid/none", {}))
    waiter = Subscription("payload", lambda: None)
    rounds = []

    def listen():
        rounds.append(True)
        if len(rounds) == 1:
            listener.subscribe(waiter)
            listener.start()
        else:
            listener.unsubscribe(waiter)

    monkeypatch.setattr(listener, "_connect_and_listen", listen)
    listener.start()
    wait_until(lambda: len(rounds) == 2 and not listener._is_started)


def test_a_waiter_that_gives_up_passes_its_wake_up_on(blocking):
    held = blocking.acquire("k", LONG_MS)
    first, second = blocking.open_waiter("k"), blocking.open_waiter("k")
    try:
        for waiter in (first, second):
            waiter.attempt(LONG_MS, None, LONG_MS)
            assert waiter.wait(1, None) is False
        wait_until(lambda: Listener.of(blocking._listen_address).is_active)
        held.release()
        assert first.wait(LONG_MS, None)
        first.close()
        assert second.wait(LONG_MS, None)
    finally:
        first.close()
        second.close()


def test_connections_are_one_and_one_for_heartbeats_and_one_for_listening(blocking, sql):
    own = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'syncguard%'"
    before = sql(own)[0][0]
    held = blocking.acquire("other", LONG_MS)
    with lock(blocking, "k", ttl_ms=3_000, auto_extend=True) as mine:
        expiry = mine.expires_at_ms
        waiter = blocking.open_waiter("other")
        waiter.attempt(LONG_MS, None, LONG_MS)
        stop = threading.Event()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(waiter.wait, LONG_MS, stop)
            wait_until(lambda: Listener.of(blocking._listen_address).is_active)
            wait_until(lambda: mine.expires_at_ms > expiry or mine.lost)
            assert sql(own)[0][0] - before <= 3
            held.release()
            assert waiting.result()
        waiter.close()


@pytest.mark.slow
def test_forty_prefork_children_that_want_one_lock_fit_into_the_default_of_100_connections(
    blocking, sql
):
    """Each has a connection and a listener while it waits."""
    assert sql("SHOW max_connections") == [("100",)]
    held = blocking.acquire("k", LONG_MS)
    children = [_child_that_waits(blocking) for _ in range(40)]
    most = 0

    def count():
        nonlocal most
        ((now,),) = sql("SELECT count(*) FROM pg_stat_activity WHERE usename IS NOT NULL")
        most = max(most, now)
        return now

    wait_until(lambda: count() and len(listening(sql)) == 40, within_s=100)
    assert held.release().ok
    running = set(children)

    def all_ended():
        count()
        for child in list(running):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                running.remove(child)
                assert status == 0, "a child had no connection, or no lock"
        return not running

    wait_until(all_ended, within_s=100)
    assert 80 <= most <= 97  # three of the hundred are for administrators


def _child_that_waits(backend):
    """A forked child that acquires the lock once."""
    child = os.fork()
    if child:
        return child
    try:
        policy = Acquisition(max_retries=1, retry_delay_ms=100_000, timeout_ms=200_000)
        with lock(backend, "k", ttl_ms=LONG_MS, acquisition=policy):
            pass
        os._exit(0)
    finally:
        os._exit(1)


def test_connections_that_are_not_used_are_closed(syncguard_postgres, sql):
    with PostgresBackend.from_url(syncguard_postgres.url, application_name="idler") as backend:
        backend._runner.idle._idle_s = 0.2
        backend.is_locked("k")
        wait_until(
            lambda: not sql("SELECT 1 FROM pg_stat_activity WHERE application_name = 'idler'")
        )
        assert not backend.is_locked("k")


# -- behind PgBouncer ---------------------------------------------------------------------------


def test_behind_pgbouncer_nobody_listens_and_waiters_back_off(pgbouncer, backend_at):
    backend = backend_at(pgbouncer.url)
    inner = getattr(backend, "_backend", backend)
    held = backend.acquire("k", LONG_MS)
    with PostgresBackend.from_url(pgbouncer.url) as other, ThreadPoolExecutor() as threads:

        def wait():
            with lock(other, "k", LONG_MS, acquisition=BACKOFF):
                return True

        waiting = threads.submit(wait)
        listener = Listener.of(inner._listen_address)
        wait_until(lambda: listener.is_pooled)
        assert not listener.is_active
        held.release()
        assert waiting.result(timeout=60)


def test_a_direct_address_for_the_listener_wakes_waiters_behind_pgbouncer(
    pgbouncer, syncguard_postgres, sql
):
    with (
        PostgresBackend.from_url(pgbouncer.url, listen_url=syncguard_postgres.url) as backend,
        ThreadPoolExecutor() as threads,
    ):
        held = backend.acquire("k", LONG_MS)

        def wait():
            with lock(backend, "k", LONG_MS, acquisition=ONLY_WOKEN):
                return True

        waiting = threads.submit(wait)
        wait_until(lambda: is_flagged(sql) and Listener.of(backend._listen_address).is_active)
        held.release()
        assert waiting.result(timeout=60)


def test_behind_pgbouncer_nothing_is_prepared_and_a_direct_connection_prepares(
    pgbouncer, syncguard_postgres
):
    for url, is_direct in ((pgbouncer.url, False), (syncguard_postgres.url, True)):
        with PostgresBackend.from_url(url) as backend:
            backend.acquire("k", LONG_MS)
            connection = backend._runner.idle.take()
            assert connection.is_direct is is_direct
            assert bool(connection._prepared) is is_direct
            backend._runner.idle.keep(connection)
            health = backend.health()
            assert health.fields["isDirect"] is is_direct
            assert health.fields["canListen"] is is_direct


def test_a_server_that_does_not_answer_does_not_prolong_a_wait(
    relay, backend_at, blocking, syncguard_postgres
):
    backend = backend_at(relay.url, listen_url=syncguard_postgres.url, timeout_ms=60_000)
    assert blocking.acquire("k", LONG_MS).ok
    listener = Listener.of(
        Address(syncguard_postgres.url, {"application_name": "syncguard-listen"})
    )
    wait_until(lambda: not listener.is_active, within_s=60)  # that of another test ends
    waiter, other = backend.open_waiter("k"), backend.open_waiter("k")
    waiter.attempt(LONG_MS, None, 100)
    other.attempt(LONG_MS, None, 100)
    wait_until(lambda: other.wait(1, None) or listener.is_active, within_s=60)
    relay.is_mute = True
    begin = time.monotonic()
    assert not waiter.wait(100, None)  # begins to listen, and so looks whether the lock is free
    assert time.monotonic() - begin < 30
    waiter.close()
    other.close()
