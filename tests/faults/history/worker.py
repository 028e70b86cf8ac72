"""A worker process: some threads with the blocking lock, and some asyncio tasks on one loop."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from history.backends import open_backend, open_backend_async
from history.library_log import judge_the_log
from history.log import Log, now
from history.observer import Choices, Observer
from history.worker_async import AsyncWorker
from history.worker_blocking import BlockingWorker

_GO: Final = "go"


@dataclass(frozen=True)
class Orders:
    """What a worker process has to do."""

    name: str
    address: str
    log: str
    seed: int
    keys: int
    ttl_ms: int
    threads: int
    tasks: int
    forks: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.log).parent


def work(orders: Orders) -> None:
    """The whole life of a worker process."""
    os.setpgrp()  # a hung worker is ended together with its forked children
    log = Log(Path(orders.log))
    # The runner asks a worker that hangs where it is.
    stacks = Path(orders.log).with_suffix(".stacks").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks)
    warnings.simplefilter("ignore")  # of short TTLs, and of forks beside threads
    process = Observer(log, orders.name)
    judge_the_log(process)
    # What escapes from a thread, a task or a destructor of the library is a violation too.
    threading.excepthook = lambda args: process.foreign(args.exc_value or args.exc_type())
    sys.unraisablehook = lambda args: process.foreign(args.exc_value or args.exc_type())
    try:
        with open_backend(orders.address, log) as backend:
            until_ms = wait_for_go(orders)
            threads = [
                threading.Thread(
                    target=BlockingWorker(backend, *_seen(orders, log, f"thread-{n}")).run,
                    args=(until_ms,),
                )
                for n in range(orders.threads)
            ]
            for thread in threads:
                thread.start()
            if orders.tasks:
                asyncio.run(_tasks(orders, log, process, until_ms))
            for thread in threads:
                thread.join()
    except Exception as error:
        process.foreign(error)


def say_go(folder: Path, seconds: float) -> None:
    """All workers of the run begin now, and end after so many seconds."""
    written = folder / "go.new"
    written.write_text(str(now() + seconds * 1000))
    written.rename(folder / _GO)


def is_ready(folder: Path, name: str) -> bool:
    return (folder / f"{name}.ready").exists()


def mark_ready(orders: Orders) -> None:
    (orders.folder / f"{orders.name}.ready").touch()


def wait_for_go(orders: Orders) -> float:
    """Returns the end of the run, on the holder's clock. Starting a process may take seconds."""
    mark_ready(orders)
    go = orders.folder / _GO
    while not go.exists():
        time.sleep(0.005)
    return float(go.read_text())


async def _tasks(orders: Orders, log: Log, process: Observer, until_ms: float) -> None:
    def escaped(_loop: object, context: dict[str, Any]) -> None:
        process.foreign(context.get("exception") or RuntimeError(context["message"]))

    asyncio.get_running_loop().set_exception_handler(escaped)
    async with open_backend_async(orders.address, log) as backend:
        workers = [
            AsyncWorker(backend, *_seen(orders, log, f"task-{n}")) for n in range(orders.tasks)
        ]
        await asyncio.gather(*(worker.run(until_ms) for worker in workers))


def _seen(orders: Orders, log: Log, name: str) -> tuple[Observer, Choices]:
    full_name = f"{orders.name}.{name}"
    seed = f"{orders.seed}.{full_name}"
    choices = Choices(seed, orders.keys, orders.ttl_ms, forks=orders.forks)
    return Observer(log, full_name), choices
