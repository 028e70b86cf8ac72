"""The operations: which rows they lock, when they read the time, what they send."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from wait_until import wait_until

from syncguard import InvalidArgument, LockError, NetworkTimeout
from syncguard.postgres import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE, PostgresBackend

LONG_MS = 60_000


@pytest.fixture
def guard(syncguard_postgres):
    """Guards a lock in a transaction of its own, as ``protect`` does, until the test ends it."""
    opened = []

    def begin(backend, lock_id):
        connection = syncguard_postgres.connect(autocommit=False)
        opened.append(connection)
        inner = getattr(backend, "_backend", backend)
        rows = connection.execute(inner.protect_sql, (lock_id,)).fetchall()
        return connection, rows

    yield begin
    for connection in opened:
        connection.close()


def is_waiting_for_a_row(sql):
    return sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


def expire(sql, key="syncguard:k"):
    """End the TTL of a lock, beyond the tolerance."""
    sql(
        f"UPDATE {DEFAULT_LOCKS_TABLE} SET expires_at_ms = expires_at_ms - 3600000 WHERE key = %s",
        (key,),
    )


def test_the_capabilities_are_fencing_and_server_time(backend):
    capabilities = backend.capabilities
    assert capabilities.backend == "postgres"
    assert capabilities.supports_fencing
    assert capabilities.time_authority == "server"


@pytest.mark.parametrize("operation", ["extend", "adopt"])
def test_the_time_is_read_after_the_row_is_locked(backend, sql, syncguard_postgres, operation):
    """An extend that waits for the row until the TTL has ended does not bring the lock back."""
    for _ in range(10):
        lock = backend.acquire("k", LONG_MS)
        assert backend.extend(lock.lock_id, 200).ok
        with ThreadPoolExecutor() as threads, syncguard_postgres.connect() as other:
            with other.transaction():
                other.execute(f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} FOR UPDATE")
                waiting = threads.submit(getattr(backend, operation), lock.lock_id, LONG_MS)
                wait_until(lambda: waiting.done() or is_waiting_for_a_row(sql))
                now_ms = "extract(epoch FROM clock_timestamp()) * 1000"
                wait_until(
                    lambda: sql(
                        f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} WHERE expires_at_ms < {now_ms}"
                    )
                )
            try:
                assert not waiting.result().ok
            except NetworkTimeout:
                sql(f"TRUNCATE {DEFAULT_LOCKS_TABLE}")
                continue  # this machine was too busy: the lock_timeout of the statement ended first
        return
    pytest.fail("the statement timed out in every attempt")


def test_heartbeat_and_release_pass_an_open_guard(backend, guard):
    lock = backend.acquire("k", LONG_MS)
    _, rows = guard(backend, lock.lock_id)
    assert rows
    assert lock.extend(LONG_MS).ok
    assert lock.release().ok


def test_force_release_passes_an_open_guard_and_the_next_holder_waits_for_it(backend, guard):
    lock = backend.acquire("k", LONG_MS)
    transaction, _ = guard(backend, lock.lock_id)
    info = backend.lookup(key="k")
    assert backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash).ok
    assert not backend.is_locked("k")
    assert not backend.acquire("k", LONG_MS).ok
    transaction.rollback()
    assert backend.acquire("k", LONG_MS).ok


def test_a_lock_that_expired_under_an_open_guard_is_not_taken_over_before_its_end(
    backend, guard, sql
):
    lock = backend.acquire("k", LONG_MS)
    transaction, _ = guard(backend, lock.lock_id)
    expire(sql)
    assert not backend.acquire("k", LONG_MS).ok
    transaction.commit()
    assert backend.acquire("k", LONG_MS).fence > lock.fence


def test_an_abandoned_guard_keeps_the_lock_until_the_server_ends_its_transaction(backend, guard):
    lock = backend.acquire("k", LONG_MS)
    transaction, _ = guard(backend, lock.lock_id)
    assert lock.release().ok
    assert not backend.acquire("k", LONG_MS).ok
    transaction.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
    wait_until(lambda: backend.acquire("k", LONG_MS).ok, within_s=60)
    with pytest.raises(psycopg.Error):
        transaction.commit()


def test_the_guard_finds_no_row_once_the_lock_is_released_or_taken_over(backend, guard, sql):
    released = backend.acquire("k", LONG_MS)
    released.release()
    assert guard(backend, released.lock_id)[1] == []
    lost = backend.acquire("k", LONG_MS)
    expire(sql)
    backend.acquire("k", LONG_MS)
    assert guard(backend, lost.lock_id)[1] == []


def test_release_does_not_delete_the_row(backend, sql):
    backend.acquire("k", LONG_MS).release()
    assert sql(f"SELECT key, expires_at_ms FROM {DEFAULT_LOCKS_TABLE}") == [("syncguard:k", 0)]


def test_acquire_answers_at_once_while_another_statement_has_the_row(backend, syncguard_postgres):
    backend.acquire("k", LONG_MS).release()
    with syncguard_postgres.connect() as other, other.transaction():
        other.execute(f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} FOR UPDATE")
        assert not backend.acquire("k", LONG_MS).ok
    assert backend.acquire("k", LONG_MS).ok


@pytest.mark.parametrize("row", ["absent", "released", "expired"])
def test_of_six_racers_exactly_one_acquires_and_no_fence_is_repeated(backend, sql, row):
    fences = []
    for _ in range(10):
        if row == "absent":
            sql(f"DELETE FROM {DEFAULT_LOCKS_TABLE}")
        barrier = threading.Barrier(6)

        def race(barrier=barrier):
            barrier.wait()
            return backend.acquire("k", LONG_MS)

        with ThreadPoolExecutor(6) as threads:
            results = [each.result() for each in [threads.submit(race) for _ in range(6)]]
        (winner,) = [result for result in results if result.ok]
        fences.append(winner.fence)
        if row == "expired":
            expire(sql)
        else:
            winner.release()
    assert fences == sorted(set(fences))


def test_a_grant_never_begins_before_the_release_of_its_predecessor(backend, sql):
    previous_ms = 0
    for _ in range(50):
        lock = backend.acquire("k", LONG_MS)
        info = backend.lookup(key="k")
        assert info.acquired_at_ms >= previous_ms
        [(previous_ms,)] = sql("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        lock.release()


def test_release_and_extend_change_only_the_lock_of_their_id(backend, sql):
    first, second = backend.acquire("first", LONG_MS), backend.acquire("second", LONG_MS)
    before = sql(f"SELECT * FROM {DEFAULT_LOCKS_TABLE} WHERE user_key = 'second'")
    assert first.extend(LONG_MS + 5_000).ok
    assert first.release().ok
    assert not first.extend(LONG_MS).ok
    assert sql(f"SELECT * FROM {DEFAULT_LOCKS_TABLE} WHERE user_key = 'second'") == before
    assert second.release().ok


def test_every_operation_is_one_round_trip(relay, backend_at):
    backend = backend_at(relay.url)
    for _ in range(2):  # the first time connects, and prepares the statements
        sent = {}

        def measured(name, operation, sent=sent):
            before = relay.requests
            result = operation()
            sent[name] = relay.requests - before
            return result

        lock = measured("acquire", lambda: backend.acquire("k", LONG_MS))
        measured("refused", lambda: backend.acquire("k", LONG_MS))
        measured("extend", lambda: backend.extend(lock.lock_id, LONG_MS))
        measured("is_locked", lambda: backend.is_locked("k"))
        measured("lookup", lambda: backend.lookup(key="k"))
        measured("lookup by id", lambda: backend.lookup(lock_id=lock.lock_id))
        measured("page", lambda: backend.page_raw())
        lock = measured("adopt", lambda: backend.adopt(lock.lock_id, LONG_MS))
        measured("release", lambda: backend.release(lock.lock_id))
    assert set(sent.values()) == {1}, sent


def test_bad_input_is_not_sent(relay, backend_at):
    backend = backend_at(relay.url)
    for operation in (
        lambda: backend.acquire("a\0b", LONG_MS),
        lambda: backend.acquire("k", 0),
        lambda: backend.release("no id"),
        lambda: backend.extend("no id", LONG_MS),
        lambda: backend.lookup(),
    ):
        with pytest.raises(InvalidArgument):
            operation()
    assert relay.requests == 0


@pytest.mark.parametrize("default", ["serializable", "repeatable read"])
def test_a_stricter_default_isolation_causes_no_conflicts(backend_at, syncguard_postgres, default):
    with syncguard_postgres.connect() as connection:
        connection.execute(f"ALTER ROLE tests SET default_transaction_isolation = '{default}'")
        try:
            backend = backend_at(syncguard_postgres.url)

            def work():
                for nth in range(20):
                    result = backend.acquire(f"k{nth % 3}", LONG_MS)
                    if result.ok:
                        assert result.extend(LONG_MS).ok
                        assert result.release().ok

            with ThreadPoolExecutor(6) as threads:
                for each in [threads.submit(work) for _ in range(6)]:
                    each.result()
        finally:
            connection.execute("ALTER ROLE tests RESET default_transaction_isolation")


def test_no_statement_turns_synchronous_commit_off(blocking):
    texts = [blocking.setup_sql, *(s.text.decode() for s in blocking._calls._statements)]
    for text in texts:
        assert "synchronous_commit = " not in text
        assert "set_config" not in text


def test_lost_counters_restart_above_old_fences_with_a_floor(make_backend, sql):
    backend = make_backend(fence_floor="clock")
    before = backend.acquire("k", LONG_MS)
    before.release()
    sql(f"TRUNCATE {DEFAULT_FENCES_TABLE}")
    assert backend.acquire("k", LONG_MS).fence > before.fence


def test_without_a_floor_fences_count_from_one(backend):
    assert backend.acquire("k", LONG_MS).fence == "000000000000001"


def test_the_largest_fence_is_returned_and_no_larger_one(backend, sql):
    backend.acquire("k", LONG_MS).release()
    sql(f"UPDATE {DEFAULT_FENCES_TABLE} SET fence = 899999999999999")
    lock = backend.acquire("k", LONG_MS)
    assert lock.fence == "900000000000000"
    lock.release()
    with pytest.raises(LockError, match="at its maximum") as caught:
        backend.acquire("k", LONG_MS)
    assert caught.value.code == "Internal"
    assert not backend.is_locked("k")


def test_batches_of_heartbeats_in_opposite_orders_do_not_deadlock(blocking, syncguard_postgres):
    locks = [blocking.acquire(f"lock {nth}", LONG_MS) for nth in range(30)]
    batch = [(lock.lock_id, LONG_MS) for lock in locks]

    def beat(extensions):
        with PostgresBackend.from_url(syncguard_postgres.url) as backend:
            for _ in range(30):
                results = backend._runner.run(backend._calls.extend(extensions))
                assert all(result.ok for result in results)

    with ThreadPoolExecutor() as threads:
        for each in [threads.submit(beat, batch), threads.submit(beat, batch[::-1])]:
            each.result()


def test_cleanup_deletes_what_is_over_and_skips_rows_that_are_locked(
    make_backend, sql, syncguard_postgres
):
    backend = make_backend()
    inner = getattr(backend, "_backend", backend)
    run = inner.cleanup if inner is backend else lambda: backend._loop.run(inner.cleanup())
    for key in ("locked", "over", "live", "fresh"):
        lock = backend.acquire(key, LONG_MS)
        if key != "live":
            lock.release()
    sql(
        f"UPDATE {DEFAULT_LOCKS_TABLE} SET acquired_at_ms = acquired_at_ms - 3600000"
        " WHERE user_key <> 'fresh'"
    )
    with syncguard_postgres.connect() as other, other.transaction():
        other.execute(
            f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} WHERE user_key = 'locked' FOR KEY SHARE"
        )
        assert run() == 1
    rows = sql(f"SELECT user_key FROM {DEFAULT_LOCKS_TABLE} ORDER BY 1")
    assert rows == [("fresh",), ("live",), ("locked",)]
    assert sql(f"SELECT count(*) FROM {DEFAULT_FENCES_TABLE}") == [(4,)]


def test_cleanup_happens_by_itself(make_backend, sql):
    backend = make_backend()
    backend.acquire("old", LONG_MS).release()
    sql(f"UPDATE {DEFAULT_LOCKS_TABLE} SET acquired_at_ms = 1")
    lock = backend.acquire("k", LONG_MS)
    for _ in range(128):
        backend.release(lock.lock_id)
    assert sql(f"SELECT user_key FROM {DEFAULT_LOCKS_TABLE}") == [("k",)]


def test_cleanup_in_is_locked_deletes_the_row_of_an_expired_lock(make_backend, sql):
    backend = make_backend(cleanup_in_is_locked=True)
    backend.acquire("k", LONG_MS)
    assert backend.is_locked("k")
    expire(sql)
    assert not backend.is_locked("k")
    assert sql(f"SELECT count(*) FROM {DEFAULT_LOCKS_TABLE}") == [(0,)]


def test_many_locks_are_released_in_one_round_trip(relay):
    with PostgresBackend.from_url(relay.url) as backend:
        _release_twenty(relay, backend)


def _release_twenty(relay, backend):
    locks = [backend.acquire(f"lock {nth}", LONG_MS) for nth in range(20)]
    locks[3].release()
    before = relay.requests
    results = backend.release_many([lock.lock_id for lock in locks])
    assert relay.requests - before == 1
    assert [result.ok for result in results] == [nth != 3 for nth in range(20)]
    assert backend.release_many([]) == []
