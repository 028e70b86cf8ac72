"""Locks on one machine, in one run: SQLite beside ``fcntl`` locks and ``filelock``.

Pairs of acquire and release, uncontended, by one process; then the same lock wanted by several
processes at once, with the slowest and the fastest of them. ``fcntl`` and ``filelock`` have no
fence, no TTL and no list: they are the least that a lock between processes can cost.

    pip install --group benchmarks
    python benchmarks/sqlite.py [--seconds 3] [--processes 8] [--folder /var/tmp]
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from filelock import FileLock

from syncguard import Acquisition
from syncguard.sqlite import SQLiteBackend

PATIENT = Acquisition(timeout_ms=600_000)
BATCH = 20

Pair = Callable[[], None]


@contextmanager
def sqlite(folder: str, synchronous: str, *, waits: bool) -> Iterator[Pair]:
    with SQLiteBackend(f"{folder}/{synchronous}.sqlite3", synchronous=synchronous) as backend:

        def pair() -> None:
            if waits:
                with backend.lock("k", acquisition=PATIENT):
                    pass
            else:
                backend.acquire("k").release()

        yield pair


@contextmanager
def fcntl_lock(folder: str) -> Iterator[Pair]:
    with open(f"{folder}/fcntl", "w") as file:

        def pair() -> None:
            fcntl.lockf(file, fcntl.LOCK_EX)
            fcntl.lockf(file, fcntl.LOCK_UN)

        yield pair


@contextmanager
def file_lock(folder: str) -> Iterator[Pair]:
    lock = FileLock(f"{folder}/filelock", poll_interval=0.001)

    def pair() -> None:
        with lock:
            pass

    yield pair


def contenders(folder: str, *, waits: bool) -> dict[str, Callable[[], object]]:
    return {
        "SyncGuard, synchronous=normal": lambda: sqlite(folder, "normal", waits=waits),
        "SyncGuard, synchronous=full": lambda: sqlite(folder, "full", waits=waits),
        "fcntl.lockf": lambda: fcntl_lock(folder),
        "filelock": lambda: file_lock(folder),
    }


def count(pair: Pair, seconds: float) -> int:
    pairs, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        pair()
        pairs += 1
    return pairs


def uncontended(folder: str, seconds: float) -> dict[str, float]:
    """The median of pairs per second. The contenders take turns in short rounds."""
    makers = contenders(folder, waits=False)
    rates: dict[str, list[float]] = {name: [] for name in makers}
    rounds = max(3, int(seconds / 0.25))
    opened = {name: maker() for name, maker in makers.items()}
    pairs = {name: each.__enter__() for name, each in opened.items()}
    for _ in range(rounds):
        for name, pair in pairs.items():
            begin, done = time.perf_counter(), 0
            while time.perf_counter() - begin < 0.25:
                for _ in range(BATCH):
                    pair()
                done += BATCH
            rates[name].append(done / (time.perf_counter() - begin))
    for each in opened.values():
        each.__exit__(None, None, None)
    return {name: statistics.median(found) for name, found in rates.items()}


def work(folder: str, name: str, seconds: float, start: object, results: object) -> None:
    with contenders(folder, waits=True)[name]() as pair:
        pair()
        start.wait()
        results.put(count(pair, seconds))


def contended(folder: str, seconds: float, processes: int) -> dict[str, list[int]]:
    """For each contender: the pairs of each process, fewest first."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in contenders(folder, waits=True):
        start, results = context.Barrier(processes), context.Queue()
        workers = [
            context.Process(target=work, args=(folder, name, seconds, start, results))
            for _ in range(processes)
        ]
        for worker in workers:
            worker.start()
        found[name] = sorted(results.get() for _ in workers)
        for worker in workers:
            worker.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--folder", default=None, help="where the files are; decides about fsync")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, files in {folder}")
        print(f"\n{'uncontended, one process':<34}{'pairs/s':>10}")
        for name, rate in uncontended(folder, options.seconds).items():
            print(f"{name:<34}{rate:>10,.0f}")
        head = f"{options.processes} processes, one lock"
        print(f"\n{head:<34}{'pairs/s':>10}{'slowest':>10}{'fastest':>10}")
        for name, pairs in contended(folder, options.seconds, options.processes).items():
            total = sum(pairs) / options.seconds
            print(f"{name:<34}{total:>10,.0f}{pairs[0]:>10,}{pairs[-1]:>10,}")


if __name__ == "__main__":
    main()
