"""A Celery worker beside the other workers of a run. No fault hits its broker."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery import Celery

from history.log import Event, Log, read_file
from history.plan import Plan
from history.processes import WorkerProcess
from history.worker import Orders, is_ready
from syncguard.testing import RedisServer

if TYPE_CHECKING:
    from typing_extensions import Self

PRELOADED: Final = ("celery.bin.celery", "celery.apps.worker", "kombu.transport.redis")
TASK: Final = "history.visit"
_START_S: Final = 90.0
_STOP_S: Final = 75.0
_TASKS_A_SECOND: Final = 25


def serve(orders: Orders, broker: str, pool: str) -> None:
    """The whole life of the worker's process."""
    os.setpgrp()
    os.environ["HISTORY_ORDERS"] = json.dumps(dataclasses.asdict(orders))
    os.environ["HISTORY_BROKER"] = broker
    from history import celery_app  # it reads the environment

    options = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    celery_app.app.worker_main(["--quiet", "worker", "-P", pool, "-c", "3", *options])


class CeleryWorker:
    """Runs tasks during the ``with`` block."""

    def __init__(self, address: str, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self._broker = RedisServer()
        self._orders = Orders(
            name="celery",
            address=address,
            log=str(folder / "celery.jsonl"),
            seed=plan.seed,
            keys=plan.keys,
            ttl_ms=plan.ttl_ms,
            threads=0,
            tasks=0,
        )

    def __enter__(self) -> Self:
        self._broker.start()
        try:
            self._start()
            self._publish()
        except BaseException:
            self._broker.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self._stop()
        finally:
            self._broker.stop()

    def _start(self) -> None:
        pool = "prefork" if self._plan.seed % 2 else "threads"
        arguments = (self._orders, self._broker.url, pool)
        self._process = WorkerProcess(target=serve, args=arguments, name="celery")
        self._process.start()
        deadline = time.monotonic() + _START_S
        while not is_ready(self._orders.folder, self._orders.name):
            if self._process.exitcode is not None or time.monotonic() > deadline:
                self._kill()
                raise RuntimeError("the Celery worker of a run did not start")
            time.sleep(0.02)

    def _publish(self) -> None:
        random = self._plan.random()
        with Celery("publisher", broker=self._broker.url, fixups=[], set_as_current=False) as app:
            with app.connection_for_write() as connection:
                for _ in range(round(self._plan.seconds * _TASKS_A_SECOND)):
                    key = f"key-{random.randrange(self._plan.keys)}"
                    is_long = random.random() < 0.03
                    seconds = self._plan.ttl_ms / 800 if is_long else random.uniform(0, 0.01)
                    app.send_task(TASK, (key, seconds), connection=connection, ignore_result=True)

    def _stop(self) -> None:
        """End when its tasks have ended. A shutdown of Celery's own may take half a minute."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        is_hung = False
        while self._running_tasks() and not is_hung:
            time.sleep(0.1)
            is_hung = time.monotonic() > deadline
        self._kill()
        log = Log(Path(self._orders.log))
        if is_hung:
            log.write("foreign", text="a task hangs")
        else:
            for pid in {event.pid for event in self._events()}:
                log.write("killed", pid=pid)  # a task may have begun since
        log.close()

    def _running_tasks(self) -> bool:
        kinds = [event.kind for event in self._events()]
        return kinds.count("begin") > kinds.count("end")

    def _events(self) -> list[Event]:
        return read_file(Path(self._orders.log))

    def _kill(self) -> None:
        assert self._process.pid is not None
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):  # it may not have its own group yet
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        self._process.join()
        self._process.close()
