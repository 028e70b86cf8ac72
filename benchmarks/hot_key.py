"""Many Celery tasks with one lock: how long all of them take, and what that costs.

All tasks are published at once, all have the same key, each holds the lock for the same short time.
The ideal is one task after the other without gaps; ``x ideal`` is the time relative to that. Real
prefork workers, one private Redis for messages, results, notes and locks.

messages     published: the first one of each task, and each time it is published again
slot s       seconds that tasks spent in a worker's slot without holding the lock
attempts     deliveries of the task that needed the most of them
in memory    most messages that the workers held at one time, running or not due yet
INFO         lines in the workers' log, and how many of them are SyncGuard's

    python benchmarks/hot_key.py [--tasks 100] [--hold 0.1] [--concurrency 4] [--rounds 1]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.signals import after_task_publish, task_postrun, task_prerun

from syncguard.testing import RedisServer
from syncguard_celery import locked_task

GOAL = 1.5
MAX_TIMES_IDEAL = 6
"""A policy that needs this many times the ideal is stopped."""

URL = os.environ.get("BENCHMARK_REDIS", "redis://localhost:1/0")
RESULTS_DB, NOTES_DB = 1, 2
SYNCGUARD_LINE = re.compile(r"found its lock held|acquired its lock")

app = Celery("hot_key", broker=URL, backend=f"{URL[:-1]}{RESULTS_DB}")
app.conf.update(syncguard_backend=URL, broker_connection_retry_on_startup=True)
notes = redis.Redis.from_url(f"{URL[:-1]}{NOTES_DB}")
entered: dict[str, float] = {}
"""By task id: when a task without a lock entered its slot in this process."""


@task_prerun.connect
def _enter_slot(task_id: str, **_: object) -> None:
    entered[task_id] = time.monotonic()


@task_postrun.connect
def _leave_slot(task_id: str, **_: object) -> None:
    if task_id in entered:
        notes.incrbyfloat("slot", time.monotonic() - entered.pop(task_id))


@after_task_publish.connect
def _count_message(**_: object) -> None:
    notes.incr("messages")


def work(task: Any, seconds: float) -> None:
    waited = time.monotonic() - entered.pop(task.request.id)
    time.sleep(seconds)
    header = task.request.get("syncguard") or {}
    with notes.pipeline(transaction=False) as pipe:
        pipe.incrbyfloat("slot", waited)
        pipe.zadd("attempts", {task.request.id: int(header.get("attempts", 0)) + 1})
        pipe.execute()


@locked_task(app=app, bind=True, name="retry", key="retry", on_contention="retry")
def retry(self: Any, seconds: float) -> None:
    work(self, seconds)


@locked_task(
    app=app,
    bind=True,
    name="wait",
    key="wait",
    on_contention="wait",
    contention_timeout_ms=600_000,
)
def wait(self: Any, seconds: float) -> None:
    work(self, seconds)


@dataclass
class Figures:
    """The figures of one run."""

    finished: int
    seconds: float
    messages: int
    slot_seconds: float
    attempts: int
    in_memory: int
    info_lines: int
    own_lines: int


@contextlib.contextmanager
def worker(url: str, concurrency: int, log: Path, name: str = "one") -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "hot_key", "worker"),
                *("-P", "prefork", "-c", str(concurrency), "-l", "INFO", "-n", f"{name}@benchmark"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            cwd=Path(__file__).parent,
            env={**os.environ, "BENCHMARK_REDIS": url},
            stdout=out,
            stderr=out,
        )
        try:
            deadline = time.monotonic() + 60
            while " ready." not in log.read_text(errors="replace"):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError("the worker did not start: " + log.read_text())
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(
    server: RedisServer, policy: str, tasks: int, hold: float, workers: int, concurrency: int
) -> Figures:
    with tempfile.TemporaryDirectory() as folder, server.client() as client:
        client.flushall()
        logs = [Path(folder) / f"worker{number}" for number in range(workers)]
        task: Any = app.tasks[policy]
        with contextlib.ExitStack() as stack:
            for log in logs:
                stack.enter_context(worker(server.url, concurrency, log, log.name))
            started = time.monotonic()
            for _ in range(tasks):
                task.apply_async((hold,))
            in_memory = 0
            limit = started + MAX_TIMES_IDEAL * tasks * hold + 10
            while (finished := notes.zcard("attempts")) < tasks and time.monotonic() < limit:
                in_memory = max(in_memory, client.hlen("unacked"))
                time.sleep(0.005)
            seconds = time.monotonic() - started
        text = "".join(log.read_text(errors="replace") for log in logs)
        lines = [line for line in text.splitlines() if "INFO" in line]
        most = notes.zrange("attempts", -1, -1, withscores=True)
        return Figures(
            finished,
            seconds,
            int(notes.get("messages") or 0),
            float(notes.get("slot") or 0),
            int(most[0][1]) if most else 0,
            in_memory,
            len(lines),
            sum(SYNCGUARD_LINE.search(line) is not None for line in lines),
        )


def report(policy: str, figures: Figures, ideal: float) -> None:
    print(
        f"{policy:8}{figures.seconds:8.1f}{figures.seconds / ideal:9.2f}{figures.messages:10}"
        f"{figures.slot_seconds:8.1f}{figures.attempts:10}{figures.in_memory:11}"
        f"{figures.info_lines:7}{figures.own_lines:6}",
        flush=True,
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--tasks", type=int, default=100)
    arguments.add_argument("--hold", type=float, default=0.1, help="seconds each holds the lock")
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--concurrency", type=int, default=4, help="processes of each worker")
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--policy", choices=["retry", "wait"], action="append")
    chosen = arguments.parse_args()
    with RedisServer() as server:
        connect(server)
        return compare(server, chosen)


def connect(server: RedisServer) -> None:
    """Make this process use the private server. The workers get it from their environment."""
    global notes
    notes = server.client(db=NOTES_DB)
    app.conf.update(
        broker_url=server.url,
        result_backend=f"{server.url[:-1]}{RESULTS_DB}",
        syncguard_backend=server.url,
        task_ignore_result=True,
    )


def compare(server: RedisServer, chosen: argparse.Namespace) -> int:
    ideal = chosen.tasks * chosen.hold
    print(f"{chosen.tasks} tasks of {chosen.hold} s on one key, ", end="")
    print(f"{chosen.workers} x {chosen.concurrency} processes\n")
    print(
        f"{'':8}{'seconds':>8}{'x ideal':>9}{'messages':>10}{'slot s':>8}{'attempts':>10}", end=""
    )
    print(f"{'in memory':>11}{'INFO':>7}{'ours':>6}")
    met = True
    for policy in chosen.policy or ("retry", "wait"):
        for _ in range(chosen.rounds):
            figures = run(
                server, policy, chosen.tasks, chosen.hold, chosen.workers, chosen.concurrency
            )
            report(policy, figures, ideal)
            if figures.finished < chosen.tasks:
                print(f"        only {figures.finished} tasks finished in that time")
            if policy == "retry":
                met = met and figures.seconds <= GOAL * ideal
    print(f"\ngoal: retry within {GOAL} of the ideal: {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
