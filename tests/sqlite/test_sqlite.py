"""The lock file: where it may be, what is in it, and what happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from syncguard import (
    Acquisition,
    AcquisitionTimeout,
    InvalidArgument,
    LockError,
    LockLost,
    NetworkTimeout,
    ServiceUnavailable,
    aio,
    lock,
)
from syncguard.backends import async_from_url, from_url
from syncguard.clock import holder_clock_ms
from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend
from syncguard.sqlite.error_codes import lock_error
from syncguard.sqlite.file_system import file_system_of, is_network
from syncguard.sqlite.location import path_of_url
from syncguard.sqlite.lock_file import LockFile
from syncguard.sqlite.schema import refuse_foreign_file

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)
KINDS = (SQLiteBackend, AsyncSQLiteBackend)


def rows(path, sql):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def another_writer(path):
    """Another process in the middle of a write; ``close()`` ends it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


# -- the path and the URL -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [str, Path])
def test_a_path_is_a_str_or_a_path(path, make):
    with SQLiteBackend(make(path)) as backend:
        assert backend.acquire("k")
    assert path.exists()


def test_nothing_is_opened_before_the_first_use(path):
    with SQLiteBackend(path):
        assert not path.exists()


@pytest.mark.parametrize(
    "url",
    ["sqlite:///{}", "SQLITE:///{}"],
)
def test_an_absolute_url_has_four_slashes(path, url):
    with from_url(url.format(path), key_prefix="shop") as backend:
        assert type(backend) is SQLiteBackend
        assert backend.key_prefix == "shop"
        assert backend.acquire("k")
    assert path.exists()


def test_a_relative_path_stays_the_same_after_a_change_of_directory(path, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with from_url("sqlite:///locks.sqlite3") as backend:
        monkeypatch.chdir(tmp_path)
        assert backend.acquire("k")
    assert path.exists()


def test_special_characters_of_a_path_are_percent_encoded():
    assert path_of_url("sqlite:////srv/my%20shop/50%25%3F.sqlite3") == "/srv/my shop/50%?.sqlite3"


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/path",
        "sqlite:///:memory:",
        "sqlite:////srv/folder/",
        "sqlite:////srv/locks.sqlite3?mode=ro",
        "redis:///path",
    ],
)
def test_another_url_is_refused(url):
    for kind in KINDS:
        with pytest.raises(InvalidArgument):
            kind.from_url(url)


@pytest.mark.parametrize("path", [":memory:", "file::memory:?cache=shared", "", None, 1, b"x"])
def test_what_is_not_a_file_that_processes_share_is_refused(path):
    for kind in KINDS:
        with pytest.raises(InvalidArgument):
            kind(path)


def test_locks_in_memory_are_refused_with_the_name_of_the_right_backend():
    with pytest.raises(InvalidArgument, match=r"syncguard\.memory\.MemoryBackend"):
        SQLiteBackend(":memory:")


def test_a_url_as_a_path_is_refused_with_the_name_of_the_right_function(path):
    with pytest.raises(InvalidArgument, match="from_url"):
        SQLiteBackend(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous": "off"},
        {"timeout_ms": 0},
        {"locks_table": "syncguard_locks"},
        {"fences_table": "SyncGuard_Fence_Counters"},
        {"timeout_ms": 1.5},
        {"fence_floor": "server"},
        {"locks_table": "a b"},
        {"locks_table": "1a"},
        {"fences_table": 'x"; DROP TABLE y'},
        {"fences_table": "sqlite_x"},
        {"fences_table": None},
        {"locks_table": "same", "fences_table": "SAME"},
        {"key_prefix": "x" * 1700},
    ],
)
def test_bad_options_are_refused_before_any_io(path, options):
    for kind in KINDS:
        with pytest.raises(InvalidArgument):
            kind(path, **options)
    assert not path.exists()


# -- the file -------------------------------------------------------------------------------------


def test_setup_can_be_called_twice(path):
    with SQLiteBackend(path) as backend:
        backend.setup()
        backend.setup()

    async def main():
        async with AsyncSQLiteBackend(path) as backend:
            await backend.setup()
            await backend.setup()

    asyncio.run(main())
    tables = rows(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    assert tables == [("syncguard_py_fences",), ("syncguard_py_locks",)]


def test_the_file_has_a_write_ahead_log_and_our_application_id(backend, path):
    backend.setup()
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]
    assert rows(path, "PRAGMA application_id") == [(int.from_bytes(b"SGLK", "big"),)]


@pytest.mark.parametrize(("synchronous", "level"), [("normal", 1), ("full", 2)])
def test_the_connection_has_the_chosen_durability_and_no_busy_timeout(path, synchronous, level):
    with SQLiteBackend(path, synchronous=synchronous) as backend:
        backend.setup()
        connection = backend._file._open.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)


def test_tables_can_have_other_names(path):
    with SQLiteBackend(path, locks_table="held", fences_table="fences") as backend:
        assert backend.acquire("k")
        assert rows(path, "SELECT key, user_key FROM held") == [("syncguard:k", "k")]
        assert rows(path, "SELECT fence_key FROM fences") == [("syncguard:fence:syncguard:k",)]


def test_other_names_in_the_same_file_are_other_locks(backend, path):
    assert backend.acquire("k")
    with SQLiteBackend(path, locks_table="held", fences_table="fences") as other:
        assert other.acquire("k")


def test_a_release_deletes_the_row_and_keeps_the_counter(backend, path):
    backend.acquire("k").release()
    assert rows(path, "SELECT count(*) FROM syncguard_py_locks") == [(0,)]
    assert backend.count_fence_counters() == 1


def test_locks_that_nobody_released_are_deleted_in_time(path, monkeypatch):
    monkeypatch.setattr("syncguard.sqlite.lock_file._CLEANUP_CHANCE", 1)
    with SQLiteBackend(path) as backend:
        backend.acquire("held", ttl_ms=60_000)
        backend.acquire("forgotten", ttl_ms=1)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            backend.acquire("k").release()
            if rows(path, "SELECT user_key FROM syncguard_py_locks") == [("held",)]:
                break
            time.sleep(0.01)
        else:
            pytest.fail("the row was not deleted")


def test_prefixes_separate_locks_and_their_lists(path):
    with SQLiteBackend(path, key_prefix="shop") as shop:
        with SQLiteBackend(path, key_prefix="shop:office") as office:
            held = office.acquire("k")
            assert shop.acquire("k")
            assert shop.count_live_locks() == office.count_live_locks() == 1
            assert [info.key for info in shop.live_locks_raw()] == ["k"]
            assert shop.count_fence_counters() == office.count_fence_counters() == 1
            assert not shop.release(held.lock_id)
            assert office.release(held.lock_id)


@pytest.mark.parametrize("prefix", ["", "p" * 1650])
def test_a_prefix_may_be_empty_or_so_long_that_keys_are_hashed(path, prefix):
    with SQLiteBackend(path, key_prefix=prefix) as backend:
        held = backend.acquire("k" * 500)
        assert [info.key for info in backend.live_locks_raw()] == ["k" * 500]
        assert backend.count_live_locks() == 1
        assert held.release()


def test_a_later_fence_is_at_least_the_clock(backend):
    before = time.time_ns() // 1_000_000
    assert int(backend.acquire("k").fence) >= before * 10


def test_without_the_floor_fences_count_from_one_and_the_health_report_warns(path):
    with SQLiteBackend(path, fence_floor=None) as backend:
        assert backend.acquire("k").fence == "000000000000001"
        assert "power cut" in backend.health().findings[0]
    with SQLiteBackend(path, fence_floor=None, synchronous="full") as backend:
        assert backend.health().findings == ()


def test_a_counter_at_its_maximum_is_an_error_and_acquires_nothing(backend, path):
    backend.acquire("k").release()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE syncguard_py_fences SET fence = 900000000000000")
    connection.close()
    with pytest.raises(LockError) as caught:
        backend.acquire("k")
    assert caught.value.code == "Internal"
    assert not backend.is_locked("k")


# -- files that cannot be used --------------------------------------------------------------------


class Overtaken:
    """A connection to a new file that another process prepares before one of our statements."""

    def __init__(self, path, nth):
        self.path = path
        self.left = nth
        self.connection = sqlite3.connect(path, isolation_level=None)

    def execute(self, sql):
        self.left -= 1
        if self.left == 0 and not self.connection.in_transaction:
            with SQLiteBackend(self.path) as other:
                other.setup()
        return self.connection.execute(sql)


def test_two_processes_may_make_the_file_at_the_same_time(tmp_path):
    for statements in itertools.count(1):
        mine = Overtaken(tmp_path / f"{statements}.sqlite3", statements)
        with contextlib.closing(mine.connection):
            refuse_foreign_file(mine)
        if mine.left > 0:
            break
    assert statements > 2


def test_the_file_of_another_application_is_refused_and_stays_as_it_is(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE invoices (id)")
    connection.close()
    before = path.read_bytes()
    with SQLiteBackend(path) as backend:
        with pytest.raises(InvalidArgument, match="a file of their own"):
            backend.acquire("k")
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(path):
    path.write_text("These are not locks. " * 100)
    before = path.read_bytes()
    with SQLiteBackend(path) as backend:
        with pytest.raises(InvalidArgument, match="is not a SQLite database"):
            backend.acquire("k")
    assert path.read_bytes() == before


def test_a_directory_is_refused(path):
    path.mkdir()
    with SQLiteBackend(path) as backend:
        with pytest.raises(InvalidArgument, match="is a directory"):
            backend.acquire("k")


def test_a_missing_directory_is_named(path):
    shutil.rmtree(path.parent)
    with SQLiteBackend(path) as backend:
        with pytest.raises(ServiceUnavailable, match="its directory does not exist") as caught:
            backend.acquire("k")
    assert isinstance(caught.value.context.cause, sqlite3.OperationalError)
    assert str(path) in str(caught.value)


PERMISSIONS = """if True:
    import os, sys
    from syncguard import LockError
    from syncguard.sqlite import SQLiteBackend
    if os.geteuid() == 0:  # permissions do not bind root
        os.setuid(65534)
    try:
        SQLiteBackend(sys.argv[1]).acquire("k")
    except LockError as error:
        print(error.code, error)
"""


@pytest.mark.parametrize("what", ["directory", "file"])
def test_missing_permissions_are_an_auth_failed_that_says_so(what):
    # Not below tmp_path, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="syncguard-"))
    path = folder / "locks.sqlite3"
    try:
        folder.chmod(0o555 if what == "directory" else 0o777)
        if what == "file":
            path.touch()
            path.chmod(0o444)
        command = [sys.executable, "-c", PERMISSIONS, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)
    assert done.stdout == (
        f"AuthFailed the lock file {path} cannot be written: check the permissions of the file and"
        " of its directory\n"
    )


def test_a_damaged_file_says_what_to_do(backend, path):
    backend.acquire("k")
    backend.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    with pytest.raises(LockError, match="is damaged") as caught:
        backend.acquire("k")
    assert caught.value.code == "Internal"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("database or disk is full", "ServiceUnavailable"),
        ("disk I/O error", "ServiceUnavailable"),
        ("out of memory", "ServiceUnavailable"),
        ("attempt to write a readonly database", "AuthFailed"),
        ("something new", "Internal"),
    ],
)
def test_errors_without_a_code_are_read_by_their_text(text, code):
    """As Python 3.10 raises them."""
    cause = sqlite3.OperationalError(text)
    error = lock_error(cause, "/srv/locks.sqlite3")
    assert (error.code, error.context.cause) == (code, cause)


def test_a_deleted_file_is_made_again_and_its_locks_are_lost(backend, path, caplog):
    with pytest.raises(LockLost), caplog.at_level(logging.WARNING, "syncguard"):
        with lock(backend, "k"):
            shutil.rmtree(path.parent)
            path.parent.mkdir()
            with SQLiteBackend(path) as other:
                assert other.acquire("k")
                # What matters: they do not go on in two files.
                assert not backend.acquire("k")
    assert "deleted or replaced" in caplog.text


# -- a busy file ----------------------------------------------------------------------------------


def test_a_busy_file_is_waited_for(backend, path, monkeypatch):
    backend.setup()
    writer = another_writer(path)
    real_pause = LockFile._pause

    def pause(*arguments):
        writer.close()  # only now, so that the file was busy for certain
        real_pause(*arguments)

    monkeypatch.setattr(LockFile, "_pause", pause)
    assert backend.acquire("k")
    with pytest.raises(sqlite3.ProgrammingError):
        writer.execute("SELECT 1")  # closed: the file was busy


def test_a_busy_file_is_tried_again_after_short_pauses_of_random_length(backend, path, monkeypatch):
    """Equal pauses would keep processes in step, and growing ones would leave the last behind."""
    backend.setup()
    writer, pauses = another_writer(path), []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 50:
            writer.close()

    monkeypatch.setattr("syncguard.sqlite.lock_file.time.sleep", sleep)
    assert backend.acquire("k")
    assert len(set(pauses)) == 50
    assert all(0.0005 <= pause <= 0.003 for pause in pauses)
    assert max(pauses[25:]) < 2 * max(pauses[:25])


def test_the_ttl_begins_when_the_file_is_free_not_when_the_wait_for_it_begins(
    backend, path, monkeypatch
):
    backend.setup()
    writer, freed_at_ms = another_writer(path), []

    def pause(*_arguments):
        writer.close()
        freed_at_ms.append(holder_clock_ms())

    monkeypatch.setattr(LockFile, "_pause", pause)
    held = backend.acquire("k")
    assert held.sent_at_ms >= freed_at_ms[0]


def late(run_on):
    """Makes the answer of a write arrive after a TTL of one millisecond."""

    def run_late(*arguments):
        result = run_on(*arguments)
        time.sleep(0.002)
        return result

    return run_late


def test_a_grant_that_comes_after_its_ttl_is_no_grant(backend, path, monkeypatch):
    held = backend.acquire("adopted")
    monkeypatch.setattr(LockFile, "_run_on", late(LockFile._run_on))
    assert not backend.acquire("k", ttl_ms=1)
    assert backend.adopt(held.lock_id, ttl_ms=1).reason == "expired"

    async def main():
        async with AsyncSQLiteBackend(path) as other:
            held = await other.acquire("adopted")
            assert not await other.acquire("k", ttl_ms=1)
            assert (await other.adopt(held.lock_id, ttl_ms=1)).reason == "expired"

    asyncio.run(main())
    assert rows(path, "SELECT count(*) FROM syncguard_py_locks") == [(0,)]


def test_a_file_that_stays_busy_is_a_network_timeout(path):
    with SQLiteBackend(path, timeout_ms=50) as backend:
        backend.setup()
        writer = another_writer(path)
        try:
            with pytest.raises(NetworkTimeout, match="was busy") as caught:
                backend.acquire("k")
            assert not backend.is_locked("k")  # readers do not wait for writers
        finally:
            writer.close()
    assert isinstance(caught.value.context.cause, sqlite3.OperationalError)


def test_the_timeout_of_the_lock_bounds_the_wait_for_a_busy_file(path):
    with SQLiteBackend(path, timeout_ms=600_000) as backend:
        backend.setup()
        writer = another_writer(path)
        try:
            with pytest.raises(NetworkTimeout):
                with lock(backend, "k", acquisition=Acquisition(max_retries=0, timeout_ms=0)):
                    pass
        finally:
            writer.close()


def test_a_signal_ends_the_wait_for_a_busy_file(path):
    with SQLiteBackend(path, timeout_ms=600_000) as backend:
        backend.setup()
        writer = another_writer(path)
        signal = threading.Event()
        timer = threading.Timer(0.05, signal.set)
        timer.start()
        try:
            with pytest.raises(LockError) as caught:
                backend.acquire("k", signal=signal)
        finally:
            writer.close()
            timer.join()
    assert caught.value.code == "Aborted"


def test_many_locks_are_extended_and_released_in_one_transaction(backend):
    locks = [backend.acquire(f"lock {nth}") for nth in range(20)]
    ids = [each.lock_id for each in locks]
    connection = backend._file._open.connection
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    assert all(backend.extend_many([(lock_id, 60_000) for lock_id in ids]))
    assert all(backend.release_many(ids))
    connection.set_trace_callback(None)
    assert statements.count("BEGIN IMMEDIATE") == statements.count("COMMIT") == 2


def test_an_unusable_file_is_an_error_for_each_of_many_locks(backend, path):
    ids = [backend.acquire(f"lock {nth}").lock_id for nth in range(2)]
    shutil.rmtree(path.parent)
    results = backend.release_many(ids) + backend.extend_many([(each, 1_000) for each in ids])
    assert [result.code for result in results] == ["ServiceUnavailable"] * 4


def test_the_heartbeat_extends_a_lock(backend):
    with lock(backend, "k", ttl_ms=15_000, auto_extend=True) as held:
        before = backend.lookup(key="k").expires_at_ms
        deadline = time.monotonic() + 60
        while backend.lookup(key="k").expires_at_ms == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        held.ensure_held()


# -- interrupts -----------------------------------------------------------------------------------


class Interrupt(BaseException):
    """As Ctrl-C raises it."""


@pytest.mark.parametrize("moment", ["BEGIN IMMEDIATE", "INSERT", "COMMIT"])
def test_an_interrupt_at_any_moment_leaves_no_lock_and_no_open_transaction(backend, path, moment):
    backend.setup()

    class Interrupting:
        def __init__(self, connection):
            self._connection = connection
            self.is_armed = True

        def execute(self, sql, *values):
            result = self._connection.execute(sql, *values)
            if self.is_armed and sql.startswith(moment):
                self.is_armed = False
                raise Interrupt
            return result

        def __getattr__(self, name):
            return getattr(self._connection, name)

    real = backend._file._open.connection
    backend._file._open.connection = Interrupting(real)
    with pytest.raises(Interrupt):
        with lock(backend, "k", acquisition=AT_ONCE):
            pytest.fail("the block began")
    backend._file._open.connection = real
    with SQLiteBackend(path, timeout_ms=10_000) as other:
        assert other.acquire("k")


def test_an_interrupted_adopt_leaves_no_lock(backend, monkeypatch):
    held = backend.acquire("k")
    run = LockFile.run

    def interrupted(*arguments):
        monkeypatch.undo()
        run(*arguments)
        raise Interrupt

    monkeypatch.setattr(LockFile, "run", interrupted)
    with pytest.raises(Interrupt):
        backend.adopt(held.lock_id)
    assert not backend.is_locked("k")


def test_a_transaction_that_was_left_open_is_rolled_back_by_the_next_operation(backend):
    """As after an interrupt in the middle of a rollback."""
    backend.acquire("k")
    connection = backend._file._open.connection
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM syncguard_py_locks")
    assert backend.is_locked("k")
    assert not connection.in_transaction


@pytest.mark.parametrize("moment", ["BEGIN IMMEDIATE", "SELECT", "INSERT", "COMMIT"])
def test_a_release_in_the_middle_of_an_operation_of_the_same_thread_harms_neither(
    backend, path, moment
):
    """As a signal handler does it, or a generator that the garbage collector closes."""
    held = backend.acquire("held")
    real, released = backend._file._open.connection, []

    class Reentering:
        def execute(self, sql, *values):
            if not released and sql.startswith(moment):
                released.append(None)
                released[0] = backend.release(held.lock_id).ok
            return real.execute(sql, *values)

        def __getattr__(self, name):
            return getattr(real, name)

    backend._file._open.connection = Reentering()
    assert backend.acquire("k")
    assert released == [True]
    with SQLiteBackend(path) as other:
        assert other.is_locked("k")
        assert not other.is_locked("held")


# -- asyncio --------------------------------------------------------------------------------------


def test_a_cancelled_acquire_leaves_no_lock(path):
    async def main():
        async with AsyncSQLiteBackend(path) as backend:
            await backend.setup()
            for nth in range(30):
                task = asyncio.ensure_future(backend.acquire("k"))
                await asyncio.sleep(nth / 10_000)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await task).release()
                assert not await backend.is_locked("k")

    asyncio.run(main())


def test_a_cancelled_lock_block_leaves_no_lock(path):
    async def main():
        async with AsyncSQLiteBackend(path) as backend:

            async def work():
                async with aio.lock(backend, "k"):
                    await asyncio.sleep(0)

            for nth in range(30):
                task = asyncio.ensure_future(work())
                await asyncio.sleep(nth / 5_000)
                task.cancel()
                await asyncio.wait({task})
                assert not await backend.is_locked("k")

    asyncio.run(main())


def test_an_acquire_that_is_cancelled_while_the_file_is_busy_leaves_no_lock(path):
    async def main():
        async with AsyncSQLiteBackend(path) as backend:
            await backend.setup()
            writer = another_writer(path)
            task = asyncio.ensure_future(backend.acquire("k"))
            await asyncio.sleep(0.02)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, writer.close)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await backend.is_locked("k")

    asyncio.run(main())


def test_one_asyncio_backend_serves_several_loops_one_after_the_other(path):
    backend = async_from_url(f"sqlite:///{path}")

    async def main():
        async with aio.lock(backend, "k") as held:
            return held.fence

    fences = [asyncio.run(main()) for _ in range(3)]
    assert fences == sorted(set(fences))
    asyncio.run(backend.aclose())


def test_a_blocking_and_an_asyncio_backend_exclude_each_other(backend, path):
    async def main():
        async with AsyncSQLiteBackend(path) as other:
            async with aio.lock(other, "k", acquisition=AT_ONCE):
                pass

    with lock(backend, "k"):
        with pytest.raises(AcquisitionTimeout):
            asyncio.run(main())
    asyncio.run(main())


# -- file systems ---------------------------------------------------------------------------------

MOUNTS = [
    "/dev/vda / ext4 rw 0 0",
    "server:/export /srv nfs4 rw 0 0",
    "/dev/vdb /srv/local ext4 rw 0 0",
    "//nas/share /mnt/with\\040space cifs rw 0 0",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home", "ext4"),
        ("/srv/shop", "nfs4"),
        ("/srv", "nfs4"),
        ("/srvlike", "ext4"),
        ("/srv/local/shop", "ext4"),
        ("/mnt/with space/x", "cifs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_longest_mount_point(path, kind):
    assert file_system_of(path, MOUNTS) == kind
    assert is_network(kind) == (kind != "ext4")


def test_the_file_system_of_this_machine_is_known(tmp_path):
    assert (file_system_of(str(tmp_path)) != "") == Path("/proc/self/mounts").exists()


def test_without_a_list_of_mounts_the_file_system_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr("syncguard.sqlite.file_system.MOUNTS", tmp_path / "missing")
    assert file_system_of("/srv") == ""


def test_a_network_file_system_is_warned_of_once_and_reported(backend, path, monkeypatch, caplog):
    mounts = path.with_name("mounts")
    mounts.write_text(f"server:/export {path.parent.parent} nfs4 rw 0 0\n")
    monkeypatch.setattr("syncguard.sqlite.file_system.MOUNTS", mounts)
    for _ in range(2):
        backend.acquire("k")
        backend.close()
    assert caplog.text.count("network file system (nfs4)") == 1
    assert "network file system (nfs4)" in backend.health().findings[0]


# -- without redis --------------------------------------------------------------------------------


def test_sqlite_needs_no_redis(path):
    script = """if True:
        import asyncio, sys
        sys.modules["redis"] = None
        import syncguard, syncguard.aio, syncguard.testing, syncguard.testing.plugin
        from syncguard.backends import async_from_url, from_url
        with from_url(sys.argv[1]) as backend, backend.lock("k", auto_extend=True):
            print(backend.count_live_locks(), backend.health().fields["liveLocks"])
        async def main():
            async with async_from_url(sys.argv[1]) as backend, backend.lock("k"):
                print(await backend.count_live_locks())
        asyncio.run(main())
    """
    command = [sys.executable, "-c", script, f"sqlite:///{path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 1\n1\n", "")


def test_a_python_without_sqlite_says_so():
    script = """if True:
        import sys
        sys.modules["sqlite3"] = None
        from syncguard import LockError, backends
        for name in ("sqlite", "syncguard.sqlite.AsyncSQLiteBackend"):
            try:
                backends.backend_class(name)
            except LockError as error:
                print(error)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    missing = (
        "needs the module sqlite3 of the standard library, and this Python was built without it"
    )
    assert done.stdout.splitlines() == [
        f"sqlite:// {missing}",
        f"syncguard.sqlite.AsyncSQLiteBackend {missing}",
    ]


def test_no_text_contains_the_key_or_the_lock_id(backend, path):
    held = backend.acquire("secret-invoice")
    assert repr(backend) == f"SQLiteBackend({str(path)!r}, key_prefix='syncguard')"
    assert "secret" not in repr(held)
    assert os.fspath(path) in repr(backend)
