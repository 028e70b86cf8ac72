"""Celery no-op tasks with and without locks, as ratios in one run against one worker.

A plain task, the same under ``@locked_task``, under celery-once and under celery-singleton, each
with a separate key for each call, so that there is no contention. One prefork worker, one private
Redis for messages, results and locks. Some lock when they publish, others when they run, so both
are timed, one after the other: the messages are published to a queue without a worker, which is
then renamed to the worker's queue; the run ends when the last result is stored. The throughput is
that of both together.

With five processes on a few cores there is much noise, which changes within seconds. So the
contenders take turns in many short rounds, and each is compared with the plain task of the same
round. The result is the median of these ratios, printed with half of its 95 % interval.

    pip install --group benchmarks
    python benchmarks/celery_tasks.py [--rounds 200] [--tasks 25] [--concurrency 2]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from syncguard.testing import RedisServer
from syncguard_celery import locked_task

GOAL = 0.8
TIMEOUT_S = 120
RESULTS_DB = 1
URL = os.environ.get("BENCHMARK_REDIS", "redis://localhost:1/0")

app = Celery("celery_tasks", broker=URL, backend=f"{URL[:-1]}{RESULTS_DB}")
app.conf.update(
    syncguard_backend=URL,
    singleton_backend_url=URL,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": URL}},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="plain")
def plain(number: int) -> None: ...


@locked_task(app=app, name="locked", key="number:{number}")
def locked(number: int) -> None: ...


@locked_task(app=app, name="published", key="published:{number}", at="publish")
def published(number: int) -> None: ...


@app.task(name="once", base=QueueOnce, once={"keys": ["number"]})
def once(number: int) -> None: ...


@app.task(name="singleton", base=Singleton)
def singleton(number: int) -> None: ...


CONTENDERS: dict[str, Any] = {
    "plain": plain,
    "@locked_task": locked,
    '@locked_task at="publish"': published,
    "celery-once": once,
    "celery-singleton": singleton,
}
_numbers = itertools.count()


@contextlib.contextmanager
def worker(url: str, concurrency: int) -> Iterator[None]:
    here = Path(__file__).parent
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "celery_tasks", "worker"),
                *("-P", "prefork", "-c", str(concurrency), "-l", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            cwd=here,
            env={**os.environ, "BENCHMARK_REDIS": url},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


class RoundRunner:
    """Runs a round: fills a queue, gives it to the worker, and counts the results."""

    def __init__(self, server: RedisServer) -> None:
        self._messages = server.client()
        self._results = server.client(db=RESULTS_DB)

    def run(self, task: Any, tasks: int) -> tuple[float, float]:
        """The seconds to publish this many tasks, and then to run them."""
        self._results.flushdb()
        started = time.perf_counter()
        for _ in range(tasks):
            task.apply_async((next(_numbers),), queue="filling")
        published = time.perf_counter()
        self._messages.rename("filling", "celery")
        while self._results.dbsize() < tasks:
            if time.perf_counter() - published > TIMEOUT_S:
                raise TimeoutError(task.name)
            time.sleep(0.001)
        return published - started, time.perf_counter() - published


def measure(runner: RoundRunner, rounds: int, tasks: int) -> dict[str, list[tuple[float, float]]]:
    for task in CONTENDERS.values():  # to open connections, load scripts and fill caches
        runner.run(task, 20)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    names = list(CONTENDERS)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(runner.run(CONTENDERS[name], tasks))
    return taken


def half_interval(ratios: list[float]) -> float:
    """Half of the 95 % interval of their median, as in the notches of a box plot."""
    lower, _, upper = statistics.quantiles(ratios, n=4)
    return 1.57 * (upper - lower) / math.sqrt(len(ratios))


def of_plain(taken: dict[str, list[tuple[float, float]]], name: str) -> list[float]:
    """The throughput in each round, of that of the plain task in the same round."""
    return [sum(plain) / sum(both) for plain, both in zip(taken["plain"], taken[name], strict=True)]


def report(taken: dict[str, list[tuple[float, float]]], tasks: int) -> bool:
    print(f"{'':27}{'of plain':>10}{'':8}{'tasks/s':>9}{'published/s':>13}{'run/s':>9}")
    ratios: dict[str, float] = {}
    for name, rounds in taken.items():
        totals = [sum(both) for both in rounds]
        each = of_plain(taken, name)
        ratios[name] = statistics.median(each)
        total, publishing, running = map(statistics.median, (totals, *zip(*rounds, strict=True)))
        print(f"{name:27}{ratios[name]:10.3f} ±{half_interval(each):.3f}", end="")
        print(f"{tasks / total:10.0f}{tasks / publishing:13.0f}{tasks / running:9.0f}")
    ours = ratios["@locked_task"]
    met = ours >= GOAL and ours > max(ratios["celery-once"], ratios["celery-singleton"])
    print(f"\ngoal: @locked_task at least {GOAL} of plain, and above both peers: ", end="")
    print("met" if met else "NOT met")
    return met


def take(rounds: int, tasks: int, concurrency: int) -> dict[str, list[tuple[float, float]]]:
    """Start Redis and a worker, and measure."""
    with RedisServer() as server:
        app.conf.update(
            broker_url=server.url,
            result_backend=f"{server.url[:-1]}{RESULTS_DB}",
            syncguard_backend=server.url,
            singleton_backend_url=server.url,
            ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": server.url}},
        )
        with worker(server.url, concurrency):
            return measure(RoundRunner(server), rounds, tasks)


def run(rounds: int, tasks: int, concurrency: int) -> dict[str, float]:
    """The throughput of each contender, of that of the plain task."""
    taken = take(rounds, tasks, concurrency)
    return {name: statistics.median(of_plain(taken, name)) for name in taken}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--tasks", type=int, default=25)
    arguments.add_argument("--concurrency", type=int, default=2)
    chosen = arguments.parse_args()
    if chosen.rounds < 2:
        arguments.error("--rounds must be at least 2: one round has no interval")
    taken = take(chosen.rounds, chosen.tasks, chosen.concurrency)
    return 0 if report(taken, chosen.tasks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
