"""A lock whose block ends inside an open transaction is held until the transaction ends."""

# ruff: noqa: ARG001 - fixtures act by being named

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings

import pytest
from django.db import connections, transaction
from redis.connection import Connection
from temporary_databases import count_one, counted, run, start_counting, temporary_database

from syncguard import Acquisition, LockError, LockLost, current_lock
from syncguard.testing import RedisServer
from syncguard_django import (
    LockOrderWarning,
    alock,
    hold_until_transaction_end,
    lock,
    lock_order_warning,
    locks,
    open_transactions,
    transaction_end,
)

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)
PATIENT = Acquisition(max_retries=1_000, timeout_ms=60_000)
BOOKS, ARCHIVE = "books", "archive"
TTL_MS = 3_000
"""Extended each second; long enough for a busy machine."""

taken_late = pytest.mark.filterwarnings("ignore::syncguard_django.LockOrderWarning")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ]
)
def server(request):
    """The settings of a database."""
    return request.getfixturevalue(f"{request.param}_settings")


@pytest.fixture
def books(server, backend, django_db_blocker, monkeypatch):
    """The alias of a separate database with a counter in it."""
    monkeypatch.setattr(lock_order_warning, "_warned", set())
    with django_db_blocker.unblock(), temporary_database(BOOKS, server) as alias:
        start_counting(alias)
        yield alias


@pytest.fixture
def archive(books, tmp_path):
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "archive")}
    with temporary_database(ARCHIVE, settings) as alias:
        start_counting(alias)
        yield alias


def wait_until(is_true):
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def in_a_thread(function):
    """Call it in another thread. Returns its result, or raises its error."""
    outcome = []

    def call():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return outcome[0]


def is_restored(alias):
    """Whether all methods of the connection are restored."""
    connection = connections[alias]
    names = {"commit", "rollback", "close", "_set_autocommit"}
    names |= {"savepoint_commit", "savepoint_rollback", "_syncguard_transaction_end"}
    return not names & set(connection.__dict__) and type(connection.atomic_blocks) is list


# When it is released


def test_outside_of_a_transaction_the_block_releases(books, backend):
    with lock("invoice:42"):
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_a_lock_is_released_after_the_commit_and_before_the_hooks(books, backend):
    seen = []

    def look():
        seen.append((counted(books), backend.is_locked("invoice:42")))

    with transaction.atomic(using=books):
        transaction.on_commit(look, using=books)
        with lock("invoice:42"):
            count_one(books)
        assert backend.is_locked("invoice:42")
        transaction.on_commit(look, using=books)
    assert seen == [(1, False), (1, False)]
    assert is_restored(books)


def test_the_next_holder_reads_what_was_committed(books, backend):
    """This update would be lost if the end of the block released the lock."""

    def read_under_the_lock():
        with lock("invoice:42", acquisition=PATIENT):
            return counted(books)

    seen = []
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            count_one(books)
        reader = threading.Thread(target=lambda: seen.append(in_a_thread(read_under_the_lock)))
        reader.start()
        wait_until(lambda: backend.is_locked("invoice:42"))
    reader.join()
    assert seen == [1]


def test_a_lock_is_released_after_a_rollback(books, backend):
    with pytest.raises(ZeroDivisionError):
        with transaction.atomic(using=books):
            with lock("invoice:42"):
                count_one(books)
            assert backend.is_locked("invoice:42")
            raise ZeroDivisionError
    assert not backend.is_locked("invoice:42")
    assert counted(books) == 0
    assert is_restored(books)


def test_a_body_that_raises_keeps_its_lock_until_the_rollback(books, backend):
    held_at_the_end = []
    with pytest.raises(ZeroDivisionError):
        with transaction.atomic(using=books):
            try:
                with lock("invoice:42"):
                    raise ZeroDivisionError
            finally:
                held_at_the_end.append(backend.is_locked("invoice:42"))
    assert held_at_the_end == [True]
    assert not backend.is_locked("invoice:42")


def test_a_transaction_marked_for_rollback_releases(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            count_one(books)
        transaction.set_rollback(True, using=books)
    assert not backend.is_locked("invoice:42")
    assert counted(books) == 0


@taken_late
def test_the_outermost_transaction_counts_not_a_savepoint(books, backend):
    with transaction.atomic(using=books):
        with transaction.atomic(using=books):
            with lock("invoice:42"):
                count_one(books)
        assert backend.is_locked("invoice:42")
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=books):
            with lock("invoice:43"):
                raise ZeroDivisionError
        assert backend.is_locked("invoice:43")
        assert backend.is_locked("invoice:42")
    assert backend.count_live_locks() == 0


@pytest.mark.parametrize("options", [{"durable": True}, {"savepoint": False}])
def test_every_kind_of_atomic_counts(books, backend, options):
    with transaction.atomic(using=books, **options):
        with lock("invoice:42"):
            pass
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


@pytest.mark.parametrize("robust", [False, True])
def test_a_hook_that_fails_first_does_not_keep_the_lock(books, backend, robust):
    def fail():
        raise ZeroDivisionError

    def write():
        with transaction.atomic(using=books):
            transaction.on_commit(fail, using=books, robust=robust)
            with lock("invoice:42"):
                count_one(books)

    if robust:
        write()
    else:
        with pytest.raises(ZeroDivisionError):
            write()
    assert not backend.is_locked("invoice:42")
    assert counted(books) == 1


def test_a_connection_that_is_closed_in_a_transaction_releases(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            count_one(books)
        connections[books].close()
        assert not backend.is_locked("invoice:42")
    assert counted(books) == 0
    assert is_restored(books)


def test_a_database_in_memory_ignores_close_and_so_does_the_lock(backend, transactional_db):
    with transaction.atomic():
        with lock("invoice:42"):
            pass
        connections["default"].close()
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


@pytest.mark.parametrize("form", ["with", "decorator"])
def test_a_decorated_function_holds_the_lock_until_the_transaction_ends(books, backend, form):
    def write():
        count_one(books)

    def write_locked():
        with lock("invoice:42"):
            write()

    locked = write_locked if form == "with" else lock("invoice:42")(write)
    with transaction.atomic(using=books):
        locked()
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_leaving_a_block_connects_to_no_database(backend, django_db_blocker, tmp_path):
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "books")}
    with django_db_blocker.unblock(), temporary_database(BOOKS, settings):
        connections[BOOKS].close()
        with lock("invoice:42"):
            pass
        assert connections[BOOKS].connection is None


def test_methods_that_other_code_replaced_on_the_connection_stay(books, backend):
    connection, calls = connections[books], []

    def commit():
        calls.append("commit")
        type(connection).commit(connection)

    connection.commit = commit
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
    assert connection.__dict__["commit"] is commit
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
        ours = connection.commit
        connection.commit = lambda: (calls.append("around"), ours())
    assert calls == ["commit", "around", "commit"]
    assert not backend.is_locked("invoice:42")
    with transaction.atomic(using=books):
        count_one(books)
    assert calls == ["commit", "around", "commit", "around", "commit"]
    del connection.commit


# With autocommit off


@pytest.fixture
def without_autocommit(books):
    transaction.set_autocommit(False, using=books)
    yield books
    transaction.rollback(using=books)
    transaction.set_autocommit(True, using=books)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_without_autocommit_the_end_of_the_transaction_releases(without_autocommit, backend, end):
    with lock("invoice:42"):
        count_one(without_autocommit)
    assert backend.is_locked("invoice:42")
    getattr(connections[without_autocommit], end)()
    assert not backend.is_locked("invoice:42")
    assert is_restored(without_autocommit)


def test_without_autocommit_a_commit_inside_the_block_ends_the_transaction(
    without_autocommit, backend
):
    with lock("invoice:42"):
        count_one(without_autocommit)
        transaction.commit(using=without_autocommit)
    assert not backend.is_locked("invoice:42")


def test_without_autocommit_an_atomic_block_is_a_savepoint(without_autocommit, backend):
    with transaction.atomic(using=without_autocommit):
        with lock("invoice:42"):
            count_one(without_autocommit)
    assert backend.is_locked("invoice:42")
    transaction.commit(using=without_autocommit)
    assert not backend.is_locked("invoice:42")


def test_autocommit_that_is_turned_on_again_ends_the_transaction(backend, transactional_db):
    transaction.set_autocommit(False)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE scratch (n INTEGER)")
        with lock("invoice:42"):
            cursor.execute("INSERT INTO scratch VALUES (1)")
    assert backend.is_locked("invoice:42")
    transaction.set_autocommit(True)
    assert not backend.is_locked("invoice:42")
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP TABLE scratch")


# Several databases


def test_a_lock_waits_for_the_transactions_of_every_database(books, archive, backend):
    with transaction.atomic(using=archive):
        with transaction.atomic(using=books):
            with lock("invoice:42"):
                count_one(books)
        assert counted(books) == 1
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_a_lock_does_not_wait_for_a_transaction_that_began_after_its_block(books, archive, backend):
    later = transaction.atomic(using=archive)
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            count_one(books)
        later.__enter__()
    assert not backend.is_locked("invoice:42")
    later.__exit__(None, None, None)


def test_a_lock_that_is_entered_again_waits_for_new_transactions_too(books, archive, backend):
    with transaction.atomic(using=archive):
        outer = transaction.atomic(using=books)
        outer.__enter__()
        with lock("invoice:42"):
            pass
        outer.__exit__(None, None, None)
        assert backend.is_locked("invoice:42")
    later = transaction.atomic(using=archive)
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
        later.__enter__()
        with lock("invoice:42"):
            count_one(archive)
    assert backend.is_locked("invoice:42")
    later.__exit__(None, None, None)
    assert not backend.is_locked("invoice:42")


# Acquired again


def test_the_same_transaction_enters_its_lock_again_with_the_same_fence(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42", acquisition=AT_ONCE) as first:
            pass
        with lock("invoice:42", acquisition=AT_ONCE) as second:
            assert second.fence == first.fence
        with lock("invoice:42", acquisition=AT_ONCE, until="block") as third:
            assert third.fence == first.fence
        assert backend.is_locked("invoice:42")
        with lock("invoice:43", acquisition=AT_ONCE):
            pass
    assert backend.count_live_locks() == 0
    with lock("invoice:42") as later:
        assert later.fence > first.fence


def test_nesting_inside_a_block_entered_again_follows_the_rule_of_the_core(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42") as first:
            pass
        with lock("invoice:42"):
            with pytest.raises(LockError, match="holds this lock already"), lock("invoice:42"):
                pass
            with lock("invoice:42", reentrant=True) as inner:
                assert inner.fence == first.fence
            assert current_lock() is first
        assert current_lock() is None
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_a_reentrant_block_inside_does_not_end_the_outer_one(books, backend):
    with lock("invoice:42"):
        with transaction.atomic(using=books):
            with lock("invoice:42", reentrant=True):
                count_one(books)
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_an_interrupt_while_the_block_ends_still_releases_the_lock(books, backend, monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    original = {"open_transactions": open_transactions, "end_of_transaction": transaction_end}
    for name in original:
        with pytest.raises(KeyboardInterrupt), transaction.atomic(using=books):
            with lock("invoice:42"):
                monkeypatch.setattr(hold_until_transaction_end, name, interrupt)
        monkeypatch.setattr(hold_until_transaction_end, name, getattr(original[name], name))
        assert not backend.is_locked("invoice:42")
    with transaction.atomic(using=books), lock("invoice:42", acquisition=AT_ONCE):
        pass


def test_another_thread_does_not_enter_it(books, backend):
    def take():
        with lock("invoice:42", acquisition=AT_ONCE):
            return "taken"

    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
        error = in_a_thread(take)
    assert error.code == "AcquisitionTimeout"
    assert in_a_thread(take) == "taken"


# until="block"


def test_until_block_releases_with_the_block(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42", until="block"):
            count_one(books)
        assert not backend.is_locked("invoice:42")


def test_the_setting_can_select_block_and_the_argument_overrides_it(books, configure):
    configure(HOLD_UNTIL="block")
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
        assert not locks["default"].is_locked("invoice:42")
        with lock("invoice:42", until="transaction"):
            pass
        assert locks["default"].is_locked("invoice:42")
    assert not locks["default"].is_locked("invoice:42")


@pytest.mark.parametrize("until", ["commit", "Transaction", "", 5, True])
def test_another_until_is_refused(backend, until):
    with pytest.raises(LockError, match="until must be 'transaction' or 'block'"):
        lock("invoice:42", until=until)


def test_alock_ends_with_its_block(books, backend):
    async def hold():
        async with alock("invoice:42"):
            pass

    with transaction.atomic(using=books):
        asyncio.run(hold())
        assert not backend.is_locked("invoice:42")


def test_the_transaction_does_not_release_a_kept_lock(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42") as held:
            held.keep()
    assert backend.is_locked("invoice:42")
    backend.release(held.lock_id)


# Extended, and lost


def test_a_lock_without_auto_extend_is_extended_until_the_transaction_ends(books, backend):
    with transaction.atomic(using=books):
        with lock("invoice:42", ttl_ms=15_000) as held:
            granted_until_ms = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > granted_until_ms)
        assert not held.lost
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")


def test_max_hold_ms_ends_the_extension_and_prevents_the_commit(backend, transactional_db):
    with pytest.raises(LockLost, match="was rolled back"):
        with transaction.atomic():
            with lock("invoice:42", ttl_ms=TTL_MS, auto_extend=True, max_hold_ms=900) as held:
                run("default", "CREATE TABLE half_done (n INTEGER)")
            wait_until(lambda: held.lost)
    assert "half_done" not in connections["default"].introspection.table_names()
    assert not backend.is_locked("invoice:42")


def lose(backend, held):
    """Release the lock without its holder, and wait until the holder notices the loss."""
    backend.release(held.lock_id)
    wait_until(lambda: held.lost)


def test_a_transaction_whose_lock_was_lost_is_rolled_back(books, backend):
    hooks, reported = [], []
    with pytest.raises(LockLost, match="a lock was lost before the transaction"):
        with transaction.atomic(using=books):
            transaction.on_commit(lambda: hooks.append("ran"), using=books)
            with lock("invoice:42", ttl_ms=TTL_MS, on_lost=reported.append) as held:
                count_one(books)
            lose(backend, held)
    assert counted(books) == 0
    assert hooks == []
    wait_until(lambda: reported == [held])
    assert is_restored(books)
    with transaction.atomic(using=books):
        count_one(books)
    assert counted(books) == 1


def test_without_autocommit_a_transaction_whose_lock_was_lost_is_rolled_back(
    without_autocommit, backend
):
    with lock("invoice:42", ttl_ms=TTL_MS) as held:
        count_one(without_autocommit)
    lose(backend, held)
    with pytest.raises(LockLost):
        transaction.commit(using=without_autocommit)
    assert counted(without_autocommit) == 0


def test_a_lock_lost_inside_its_block_raises_at_the_end_of_the_block(books, backend):
    with transaction.atomic(using=books):
        with pytest.raises(LockLost):
            with lock("invoice:42", ttl_ms=TTL_MS, auto_extend=True) as held:
                lose(backend, held)
        with lock("invoice:42", acquisition=AT_ONCE):
            pass


def test_a_lost_lock_is_not_entered_again(books, backend):
    with pytest.raises(LockLost, match="lost while it was held"):
        with transaction.atomic(using=books):
            with lock("invoice:42", ttl_ms=TTL_MS) as held:
                count_one(books)
            lose(backend, held)
            with lock("invoice:42"):
                pass
    assert counted(books) == 0


def test_a_rollback_raises_and_logs_nothing_for_a_lost_lock(books, backend, caplog):
    with pytest.raises(ZeroDivisionError):
        with transaction.atomic(using=books):
            with lock("invoice:42", ttl_ms=TTL_MS) as held:
                pass
            lose(backend, held)
            raise ZeroDivisionError
    assert not caplog.records


def test_a_loss_that_only_the_release_finds_is_logged_and_signalled(
    books, configure, received, caplog
):
    """The commit has already happened: an exception could not undo it."""
    configure(TELEMETRY=True)
    backend, reported = locks["default"], []
    with transaction.atomic(using=books):
        with lock("invoice:42", on_lost=reported.append) as held:
            count_one(books)
        backend.release(held.lock_id)
        received.clear()
    assert counted(books) == 1
    assert "was not protected to the end" in caplog.text
    assert "invoice:42" not in caplog.text
    assert held.lock_id not in caplog.text
    assert [name for name, _ in received] == ["lost"]
    wait_until(lambda: reported == [held])


@taken_late
def test_a_dead_redis_at_the_commit_calls_on_release_error(books, settings):
    errors = []

    def note(error, _context):
        errors.append(error.code)

    with RedisServer() as redis:
        settings.SYNCGUARD = {"default": {"LOCATION": redis.url}}
        with transaction.atomic(using=books):
            for number in range(3):
                with lock(f"invoice:{number}", on_release_error=note):
                    count_one(books)
            redis.kill()
    assert counted(books) == 3
    assert errors == ["ServiceUnavailable"] * 3


@taken_late
def test_a_forked_child_releases_nothing_and_enters_nothing_again(books, backend):
    def child():
        with pytest.raises(LockError) as raised:
            with lock("invoice:42", acquisition=AT_ONCE):
                pass
        assert raised.value.code == "AcquisitionTimeout"
        ended = connections[books].__dict__["_syncguard_transaction_end"]
        ended.refuse_if_lost(lambda: None)
        ended.transaction_ended(committed=True)

    with transaction.atomic(using=books):
        with lock("invoice:42"):
            count_one(books)
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")
    assert counted(books) == 1


# Many locks


def test_a_thousand_locks_warn_once_and_are_released_in_few_round_trips(
    books, backend, monkeypatch
):
    sent = []
    send = Connection.send_packed_command

    def spy(self, command, *args, **kwargs):
        sent.append(command)
        return send(self, command, *args, **kwargs)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with transaction.atomic(using=books):
            for number in range(1_100):
                with lock(f"invoice:{number}"):
                    pass
            assert backend.count_live_locks() == 1_100
            monkeypatch.setattr(Connection, "send_packed_command", spy)
    assert len(sent) <= 10
    assert backend.count_live_locks() == 0
    (warning,) = seen
    assert warning.category is LockOrderWarning
    assert "one transaction holds 1000 locks" in str(warning.message)


# Warnings about queries before the lock


def enter_after_a_query(books, **options):
    with transaction.atomic(using=books):
        counted(books)
        with lock("invoice:42", **options):
            pass


def test_entering_after_a_query_warns_once_per_call_site(books, backend):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            enter_after_a_query(books)
            with transaction.atomic(using=books):
                counted(books)
                with lock("invoice:42"):
                    pass
    assert [one.category for one in seen] == [LockOrderWarning] * 2
    assert {one.filename for one in seen} == {__file__}
    assert len({one.lineno for one in seen}) == 2
    assert "with lock(...), transaction.atomic():" in str(seen[0].message)


def test_if_warnings_are_errors_every_call_fails_before_it_acquires_the_lock(books, backend):
    def again():
        with transaction.atomic(using=books):
            counted(books)
            with lock("invoice:42"):
                pass

    for _ in range(2):
        with pytest.raises(LockOrderWarning):
            again()
        assert not backend.is_locked("invoice:42")


def test_without_a_query_before_there_is_no_warning(books, backend):
    counted(books)
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            counted(books)
        with lock("invoice:42"):
            pass
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
    with transaction.atomic(using=books), transaction.atomic(using=books):
        with lock("invoice:42"):
            pass
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=books):
        with lock("invoice:42"):
            counted(books)
        raise ZeroDivisionError
    with transaction.atomic(using=books):
        with lock("invoice:42"):
            pass


def test_a_lock_released_at_the_end_of_its_block_causes_no_warning(books, backend):
    enter_after_a_query(books, until="block")


def test_a_query_in_another_database_counts(books, archive, backend):
    with pytest.raises(LockOrderWarning):
        with transaction.atomic(using=books), transaction.atomic(using=archive):
            counted(archive)
            with lock("invoice:42"):
                pass


def test_execute_wrappers_of_the_user_still_work(books, backend):
    seen = []

    def wrapper(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    with connections[books].execute_wrapper(wrapper):
        run(books, "SELECT 1")
    run(books, "SELECT 2")
    assert seen == ["SELECT 1"]
