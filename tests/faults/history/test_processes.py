"""How the worker processes of a run have ended."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections import Counter
from multiprocessing import forkserver

import pytest

from history.processes import WorkerProcess

pytestmark = pytest.mark.slow

PROCESSES = 20


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an exit code takes so long that others begin to read it too."""
    read = forkserver.read_signed

    def read_later(fd: int) -> int:
        time.sleep(0.01)
        return read(fd)

    monkeypatch.setattr(forkserver, "read_signed", read_later)


@pytest.mark.usefixtures("slow_reading")
def test_an_exit_code_is_right_although_other_runs_start_processes() -> None:
    codes: Counter[int | None] = Counter()
    ended = threading.Event()

    def another_run() -> None:
        while not ended.is_set():
            process = WorkerProcess(target=int)
            process.start()
            process.join()
            process.close()

    others = [threading.Thread(target=another_run) for _ in range(2)]
    for other in others:
        other.start()
    for _ in range(PROCESSES):
        process = WorkerProcess(target=sys.exit, args=(3,))
        process.start()
        process.join()
        codes[process.exitcode] += 1
        process.close()
    ended.set()
    for other in others:
        other.join()
    assert codes == {3: PROCESSES}


def test_a_process_that_runs_has_no_exit_code() -> None:
    with multiprocessing.Pipe()[0] as end:
        process = WorkerProcess(target=end.recv, daemon=True)
        process.start()
        process.join(0.01)
        assert process.exitcode is None
        process.kill()
        process.join()
        assert process.exitcode == -9
        process.close()
