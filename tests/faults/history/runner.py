"""One run: start a store and workers, let the fault strike, and judge what was logged."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from history.celery_worker import PRELOADED, CeleryWorker
from history.checker import Violation, check
from history.log import Event, Log, read
from history.plan import Plan
from history.processes import WorkerProcess, preload
from history.stores import Store
from history.worker import Orders, is_ready, say_go, work

HANG_S: Final = 75.0
"""How long after the end of a run its workers may still work. Longer than ``checker.HANG_MS``."""

preload("history.worker", *PRELOADED)


@dataclass(frozen=True)
class Verdict:
    """What a run gave."""

    plan: Plan
    grants: int
    seconds: float
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        header = f"{self.plan.fault.name}, seed {self.plan.seed}: {self.grants} grants"
        return "\n".join([header, self.plan.again, *(f"  {each}" for each in self.violations)])


def run(plan: Plan, keep: Path | None = None) -> Verdict:
    """Run the plan. ``keep`` is a folder for the logs of runs with violations."""
    started = time.monotonic()
    with TemporaryDirectory(prefix="syncguard-history-") as folder:
        events = _history(plan, Path(folder))
        violations = check(events, plan.fault.explained_errors)
        grants = sum(event.kind == "granted" for event in events)
        if keep is not None and violations:
            _save(events, keep / f"{plan.fault.__name__}-{plan.seed}.txt")
    return Verdict(plan, grants, time.monotonic() - started, violations)


def _history(plan: Plan, folder: Path) -> list[Event]:
    log = Log(folder / "runner.jsonl")
    fault, random = plan.fault(), plan.random()
    with plan.fault.make_store() as store:
        workers = Crew(plan, store, folder, log)
        with _celery(plan, store, folder):
            workers.start()
            began = time.monotonic()
            for at in plan.strikes_at:
                time.sleep(max(0.0, began + at - time.monotonic()))
                if time.monotonic() < began + plan.seconds:
                    fault.strike(store, workers, random, plan.ttl_ms)
            workers.join()
        for name in store.unlimited():
            log.write("unlimited", text=name)
    log.close()
    return read(folder)


@contextlib.contextmanager
def _celery(plan: Plan, store: Store, folder: Path) -> Iterator[None]:
    if not plan.celery or store.max_processes == 1:
        yield
        return
    with CeleryWorker(store.address, folder, plan):
        yield


class Crew:
    """The worker processes of a run."""

    def __init__(self, plan: Plan, store: Store, folder: Path, log: Log) -> None:
        self._plan = plan
        self._store = store
        self._folder = folder
        self._log = log
        self._end = 0.0
        self._running: list[WorkerProcess] = []
        self._number = 0

    def start(self) -> None:
        for _ in range(min(self._plan.processes, self._store.max_processes)):
            self._start_one()
        deadline = time.monotonic() + HANG_S
        while not all(is_ready(self._folder, process.name) for process in self._running):
            if time.monotonic() > deadline:
                raise RuntimeError("the workers of a run did not start")
            time.sleep(0.005)
        say_go(self._folder, self._plan.seconds)
        self._end = time.monotonic() + self._plan.seconds

    def join(self) -> None:
        """Wait until all have ended. One that hangs is asked for its stacks, and killed."""
        deadline = self._end + HANG_S
        for process in self._running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                self._end_hung(process)
            elif process.exitcode != 0:
                text = f"a worker ended with {process.exitcode}"
                self._log.write("foreign", worker=process.name, text=text)
            process.close()

    # -- for faults: history.faults.Workers ---------------------------------------------------

    def send_signal(self, number: int, random: Random) -> int:
        pid = random.choice(self._running).pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)
        return pid

    def continue_one(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def replace_one(self, random: Random) -> None:
        process = self._running.pop(random.randrange(len(self._running)))
        process.kill()
        process.join()
        self._log.write("killed", pid=process.pid, text=process.name)
        process.close()
        self._start_one()

    # -- private ------------------------------------------------------------------------------

    def _start_one(self) -> None:
        self._number += 1
        name = f"process-{self._number}"
        plan = self._plan
        orders = Orders(
            name=name,
            address=self._store.address,
            log=str(self._folder / f"{name}.jsonl"),
            seed=plan.seed,
            keys=plan.keys,
            ttl_ms=plan.ttl_ms,
            threads=plan.threads,
            tasks=plan.tasks,
            forks=plan.fault.forks,
        )
        process = WorkerProcess(target=work, args=(orders,), name=name, daemon=True)
        process.start()
        self._running.append(process)

    def _end_hung(self, process: WorkerProcess) -> None:
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGUSR1)
        stacks = self._folder / f"{process.name}.stacks"
        wait_until_written(stacks)
        text = f"a worker hangs:\n{stacks.read_text()}"
        self._log.write("foreign", worker=process.name, text=text)
        os.killpg(process.pid, signal.SIGKILL)
        process.join()


def wait_until_written(path: Path) -> None:
    deadline = time.monotonic() + 5
    while not path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)


def _save(events: list[Event], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(str, events)) + "\n", encoding="utf-8")
