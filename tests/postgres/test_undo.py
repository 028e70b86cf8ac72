"""Acquires without an answer: how many are undone, by how many threads, and which need no undo."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from wait_until import wait_until

from syncguard import ServiceUnavailable
from syncguard.postgres import DEFAULT_FENCES_TABLE, PostgresBackend
from syncguard.postgres.undo import UndoThread, drop_undos

LONG_MS = 600_000
ROUNDS = 5


def statements_that_wait(sql):
    ((count,),) = sql("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return count


def test_a_server_that_is_down_leaves_nothing_to_undo():
    """Nothing was sent. A busy site would start thousands of threads in an outage."""
    backend = PostgresBackend.from_url("postgresql://127.0.0.1:1/none")
    for _ in range(ROUNDS):
        with pytest.raises(ServiceUnavailable):
            backend.acquire("k", LONG_MS)
    assert not backend._undo_thread.is_running


def test_one_thread_undoes_all_acquires_of_a_backend_and_then_ends():
    answers, undone, threads = threading.Event(), [], set()

    def undo(name):
        threads.add(threading.get_ident())
        if not answers.is_set():
            raise ServiceUnavailable
        undone.append(name)

    undo_thread = UndoThread()
    for name in range(ROUNDS):
        undo_thread.add(partial(undo, name), LONG_MS)
    wait_until(lambda: threads, within_s=60)
    answers.set()
    wait_until(lambda: not undo_thread.is_running, within_s=60)
    assert sorted(undone) == list(range(ROUNDS))
    assert len(threads) == 1


def test_an_undo_that_fails_in_another_way_does_not_end_the_later_ones():
    undo_thread, undone = UndoThread(), threading.Event()
    undo_thread.add(lambda: 1 // 0, LONG_MS)
    wait_until(lambda: not undo_thread.is_running, within_s=60)
    undo_thread.add(undone.set, LONG_MS)
    assert undone.wait(60)


def test_an_undo_is_given_up_when_the_lock_has_ended_anyway(monkeypatch):
    monkeypatch.setattr("syncguard.postgres.undo.GIVE_UP_S", -1.0)
    undo_thread = UndoThread()
    undo_thread.add(lambda: pytest.fail("too late"), 1)
    wait_until(lambda: not undo_thread.is_running, within_s=60)


def test_dropped_undos_are_not_tried_again_and_later_ones_are():
    undo_thread, tried = UndoThread(), []

    def undo():
        tried.append(None)
        raise ServiceUnavailable

    undo_thread.add(undo, LONG_MS)
    wait_until(lambda: tried, within_s=60)
    drop_undos()
    tries, undone = len(tried), threading.Event()
    undo_thread.add(undone.set, LONG_MS)
    assert undone.wait(60)
    wait_until(lambda: not undo_thread.is_running, within_s=60)
    assert len(tried) == tries


def test_dropping_undos_waits_for_the_one_that_is_executed():
    undo_thread, begun, may_end, ended = UndoThread(), *(threading.Event() for _ in range(3))

    def undo():
        begun.set()
        may_end.wait(60)
        ended.set()

    undo_thread.add(undo, LONG_MS)
    assert begun.wait(60)
    with ThreadPoolExecutor(1) as threads:
        dropping = threads.submit(drop_undos)
        assert not dropping.done()
        may_end.set()
        dropping.result()
    assert ended.is_set()


@pytest.fixture
def ends_after_the_test():
    undo_thread = UndoThread()
    yield undo_thread
    wait_until(lambda: not undo_thread.is_running, within_s=60)


@pytest.mark.usefixtures("ends_after_the_test", "syncguard_postgres")  # ends in reverse order
def test_an_undo_of_one_test_is_not_executed_in_the_next(ends_after_the_test):
    def undo():
        raise ServiceUnavailable

    ends_after_the_test.add(undo, LONG_MS)


def test_a_forked_child_has_a_thread_of_its_own():
    """The thread of the parent does not exist in the child, though its flag was copied."""
    undo_thread, answers = UndoThread(), threading.Event()

    def undo():
        if not answers.is_set():
            raise ServiceUnavailable

    undo_thread.add(undo, LONG_MS)
    child = os.fork()
    if child == 0:
        undone = threading.Event()
        undo_thread.add(undone.set, LONG_MS)
        os._exit(0 if undone.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    answers.set()
    wait_until(lambda: not undo_thread.is_running, within_s=60)


def test_a_request_that_its_own_first_sending_refused_is_undone(
    relay, backend_at, sql, syncguard_postgres
):
    """The first sending is still executed while the second one is: that is refused by it."""
    sql("ALTER FUNCTION syncguard_py_locks_acquire SET lock_timeout = '120s'")  # a busy machine
    backend = backend_at(relay.url, timeout_ms=60_000)
    acquired = backend.acquire("k", LONG_MS)  # makes the counter, and connects
    assert acquired.release().ok
    sql("DELETE FROM syncguard_py_locks")
    with syncguard_postgres.connect() as other, ThreadPoolExecutor(1) as threads:
        with other.transaction():
            other.execute(f"SELECT 1 FROM {DEFAULT_FENCES_TABLE} FOR UPDATE")
            again = threads.submit(backend.acquire, "k", LONG_MS)
            wait_until(lambda: statements_that_wait(sql) == 1, within_s=60)
            relay.cut_connections()
            wait_until(lambda: statements_that_wait(sql) == 2, within_s=60)
        assert not again.result().ok
    wait_until(lambda: not backend.is_locked("k"), within_s=60)
