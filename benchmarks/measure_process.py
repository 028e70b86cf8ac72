"""The rows of one process: the time of an import, and what grows with many pairs."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from syncguard import aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

_WARM, _PAIRS, _TASKS = 10_000, 100_000, 50

_DEPENDENCIES = """
import sys
import {package}
print(" ".join(name for name in sys.modules if not name.startswith(("syncguard", "__main__"))))
"""
_IMPORT = """
import contextlib, importlib, sys, time
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
started = time.process_time()
import {package}
print(time.process_time() - started)
"""


def import_times() -> dict[str, float]:
    """Processor time of an import, after everything of others that it imports; with bytecode."""
    rows: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

        def run(code: str, *arguments: str) -> str:
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            ).stdout

        for package in ("syncguard", "syncguard.redis", "syncguard_django", "syncguard_celery"):
            needed = run(_DEPENDENCIES.format(package=package)).split()
            code = _IMPORT.format(package=package)
            run(code, *needed)  # writes the bytecode
            times = [float(run(code, *needed)) for _ in range(9)]
            rows[f"import_{package}"] = statistics.median(times) * 1e3
    return rows


def _state(tasks: Callable[[], int]) -> tuple[float, float, float]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024, files, tasks()


def _growth(
    kind: str, before: tuple[float, float, float], after: tuple[float, float, float]
) -> dict[str, float]:
    names = ("memory", "sockets", "tasks")
    changes = (now - then for then, now in zip(before, after, strict=True))
    return {f"growth_{kind}_{name}": change for name, change in zip(names, changes, strict=True)}


def blocking_growth() -> dict[str, float]:
    with RedisServer() as server, RedisBackend.from_url(server.url) as backend:

        def pairs(count: int) -> None:
            for number in range(count):
                with lock(backend, f"k{number % 100}"):
                    pass

        pairs(_WARM)
        before = _state(threading.active_count)
        pairs(_PAIRS)
        return _growth("blocking", before, _state(threading.active_count))


def asyncio_growth() -> dict[str, float]:
    async def main(url: str) -> dict[str, float]:
        async with AsyncRedisBackend.from_url(url) as backend:

            async def one(number: int, count: int) -> None:
                for _ in range(count):
                    async with aio.lock(backend, f"k{number}"):
                        pass

            async def pairs(count: int) -> None:
                await asyncio.gather(*(one(number, count // _TASKS) for number in range(_TASKS)))

            def running() -> int:
                return len(asyncio.all_tasks())

            await pairs(_WARM)
            before = _state(running)
            await pairs(_PAIRS)
            return _growth("asyncio", before, _state(running))

    with RedisServer() as server:
        return asyncio.run(main(server.url))
