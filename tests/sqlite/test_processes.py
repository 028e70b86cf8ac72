"""Several processes on one lock file: mutual exclusion, kill -9, fork."""

from __future__ import annotations

import asyncio
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from wait_until import wait_until

from syncguard import Acquisition, LockError, aio, lock
from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend

PATIENT = Acquisition(timeout_ms=250_000)


class Ledger:
    """A counter and a log on disk. Only the lock protects them."""

    def __init__(self, folder: Path) -> None:
        self.counter, self.log = folder / "counter", folder / "log"
        self.counter.write_text("0")
        self.log.write_text("")

    def check(self, updates: int) -> None:
        fences = self.log.read_text().split()
        assert int(self.counter.read_text()) == updates, "an update was lost"
        assert len(fences) == updates
        assert fences == sorted(set(fences)), "a later write carried an earlier fence"


def run_workers(path: Path, folder: Path, workers: int, rounds: int) -> None:
    ledger = Ledger(folder)
    program = Path(__file__).with_name("ledger_worker.py")
    command = [sys.executable, program, str(path), str(folder), str(rounds)]
    running = [subprocess.Popen(command) for _ in range(workers)]
    # A worker that raised AcquisitionTimeout would exit with 1.
    assert [worker.wait() for worker in running] == [0] * workers
    ledger.check(workers * rounds)


def test_processes_lose_no_update_and_fences_increase_in_the_order_of_the_writes(path, tmp_path):
    """They also make the file, all at once."""
    run_workers(path, tmp_path, workers=4, rounds=20)


@pytest.mark.rounds
def test_eight_processes_of_200_rounds_lose_no_update(path, tmp_path):
    run_workers(path, tmp_path, workers=8, rounds=200)


def test_asyncio_tasks_lose_no_update_and_fences_increase(path, tmp_path):
    ledger = Ledger(tmp_path)

    async def work(backend):
        for _ in range(20):
            async with aio.lock(backend, "ledger", ttl_ms=120_000, acquisition=PATIENT) as held:
                number = int(ledger.counter.read_text())
                await asyncio.sleep(0.0005)
                ledger.counter.write_text(str(number + 1))
                with ledger.log.open("a") as log:
                    log.write(held.fence + "\n")

    async def main():
        one, other = (AsyncSQLiteBackend(path, timeout_ms=60_000) for _ in range(2))
        async with one, other:
            await asyncio.gather(*(work(each) for each in (one, other) * 3))

    asyncio.run(main())
    ledger.check(120)


# -- kill -9 --------------------------------------------------------------------------------------

KILLED = """if True:
    import os, signal, sys
    from syncguard.sqlite import SQLiteBackend
    backend = SQLiteBackend(sys.argv[1])
    held = backend.acquire("held by the dead", ttl_ms=60_000)

    class Dying:
        def __init__(self, connection):
            self._connection = connection
        def execute(self, sql, *values):
            if sql.startswith(sys.argv[2]):
                if sys.argv[3] == "after":
                    self._connection.execute(sql, *values)
                os.kill(os.getpid(), signal.SIGKILL)
            return self._connection.execute(sql, *values)
        def __getattr__(self, name):
            return getattr(self._connection, name)

    backend._file._open.connection = Dying(backend._file._open.connection)
    backend.acquire("k", ttl_ms=60_000)
"""


@pytest.mark.parametrize(
    ("statement", "when", "is_locked"),
    [
        ("BEGIN IMMEDIATE", "after", False),
        ("INSERT INTO syncguard_py_fences", "after", False),
        ("INSERT INTO syncguard_py_locks", "after", False),
        ("COMMIT", "before", False),
        ("COMMIT", "after", True),
    ],
)
def test_a_holder_killed_in_the_middle_of_a_write_leaves_all_of_it_or_nothing(
    backend, path, statement, when, is_locked
):
    command = [sys.executable, "-c", KILLED, str(path), statement, when]
    backend.setup()
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert backend.is_locked("k") is is_locked
    assert backend.acquire("k").ok is not is_locked
    # Its earlier lock is held until its TTL ends.
    assert backend.is_locked("held by the dead")
    integrity = backend._file._open.connection.execute("PRAGMA integrity_check").fetchone()
    assert integrity == ("ok",)


@pytest.mark.rounds
def test_killed_writers_at_random_moments_leave_a_file_that_works(backend, path, tmp_path):
    ledger = Ledger(tmp_path)
    program = Path(__file__).with_name("ledger_worker.py")
    last = backend.acquire("fences")
    last.release()
    for nth in range(10):
        worker = subprocess.Popen([sys.executable, program, path, tmp_path, "100000"])
        lines = len(ledger.log.read_text().split())
        while len(ledger.log.read_text().split()) < lines + 3 + nth:
            assert worker.poll() is None
        worker.kill()
        worker.wait()
        ledger.counter.write_text("0")  # it may have died while it wrote this file
        for info in backend.live_locks_raw():
            backend.release(info.lock_id)
        held = backend.acquire("fences")
        assert held.fence > last.fence
        held.release()
        last = held
    fences = ledger.log.read_text().split()
    assert fences == sorted(set(fences))


# -- fork -----------------------------------------------------------------------------------------


def in_child(function):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid


def succeeded(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_connection_is_open_while_the_process_forks(backend):
    backend.acquire("k")

    def check():
        assert backend._file._open.connection is None

    assert succeeded(in_child(check))
    assert backend.is_locked("k")


def test_parent_and_child_exclude_each_other_and_both_go_on(backend):
    held = backend.acquire("k")

    def work():
        assert not backend.acquire("k")
        with lock(backend, "child"):
            pass
        assert backend.acquire("kept")

    pids = [in_child(work)]
    assert backend.extend(held.lock_id)
    assert all(map(succeeded, pids))
    assert backend.is_locked("kept")
    assert held.release()


def test_a_parent_that_closes_the_file_does_not_take_it_from_its_children(backend, path):
    """If the child shared the parent's file locks, the parent would delete the child's log."""
    backend.acquire("k")
    (go, ready), (opened, tell) = os.pipe(), os.pipe()

    def work():
        assert backend.acquire("before")
        os.write(tell, b"!")
        os.read(go, 1)
        assert backend.acquire("after")

    pid = in_child(work)
    os.read(opened, 1)
    backend.close()
    os.write(ready, b"!")
    assert succeeded(pid)
    with SQLiteBackend(path) as other:
        for key in ("k", "before", "after"):
            assert other.is_locked(key)
    for end in (go, ready, opened, tell):
        os.close(end)


def test_a_fork_in_the_middle_of_an_operation_of_another_thread_harms_neither(backend):
    begun, go_on = threading.Event(), threading.Event()
    operation = backend.acquire_operation("k", 60_000, None)
    run = operation.run

    def slow(store):
        begun.set()
        go_on.wait(0.2)  # the fork waits for the operation, so nothing can end this sooner
        return run(store)

    operation.run = slow
    thread = threading.Thread(target=backend.run, args=(operation,))
    thread.start()
    begun.wait()

    def check():
        assert backend.is_locked("k")
        assert backend.acquire("child")

    pid = in_child(check)
    thread.join()
    assert succeeded(pid)
    assert backend.is_locked("k")


def test_a_fork_that_python_does_not_see_is_refused_in_the_child(backend, monkeypatch):
    backend.acquire("k")
    real = os.getpid()
    monkeypatch.setattr("syncguard.sqlite.lock_file.os.getpid", lambda: real + 1)
    with pytest.raises(LockError, match="before the fork") as caught:
        backend.acquire("other")
    assert caught.value.code == "Internal"
    backend.close()  # closes nothing: a child may not even close it
    monkeypatch.undo()
    assert backend.is_locked("k")


def test_an_asyncio_backend_works_in_a_child(path):
    backend = AsyncSQLiteBackend(path)

    async def enter(key):
        async with aio.lock(backend, key):
            assert await backend.is_locked(key)

    asyncio.run(enter("parent"))
    pid = in_child(lambda: asyncio.run(enter("child")))
    asyncio.run(enter("parent"))
    assert succeeded(pid)
    asyncio.run(backend.aclose())


# -- fairness -------------------------------------------------------------------------------------


def test_no_process_is_left_behind_where_eight_want_the_file(path):
    """With SQLite's own waiting, the fastest makes some 170 times the pairs of the slowest.

    With pauses of ours it makes two to four times as many, and beside ten busy processes up to 32
    times, because the machine stops some for a while.
    """
    pairs = _pairs_of_processes(path)
    assert max(pairs) < 100 * min(pairs)


def _pairs_of_processes(path, processes=8, least=50):
    """How many pairs each has made when the slowest has made the least."""
    shared = mmap.mmap(-1, processes * 4)
    counts = memoryview(shared).cast("I")
    may_start, start = os.pipe()
    may_stop, stop = os.pipe()

    def work(nth):
        with SQLiteBackend(path, timeout_ms=60_000) as backend:
            backend.setup()
            os.close(start)
            os.close(stop)
            os.read(may_start, 1)  # until the parent closes its end
            while not select.select([may_stop], [], [], 0)[0]:
                assert backend.release(backend.acquire(f"k{nth}", 60_000).lock_id).ok
                counts[nth] += 1

    pids = [in_child(partial(work, nth)) for nth in range(processes)]
    os.close(start)
    wait_until(lambda: min(counts) >= least, within_s=100)
    made = list(counts)
    os.close(stop)
    assert all(map(succeeded, pids))
    for end in (may_start, may_stop):
        os.close(end)
    return made
