"""Mutual exclusion: under one lock no update is lost, and fences increase in order.

Each worker reads a number from a file, waits a little, writes it back incremented, and appends
its fence to a log. Nothing but the lock protects the file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import redis.asyncio

from syncguard import Acquisition, aio
from syncguard.redis import AsyncRedisBackend
from syncguard.testing import RedisServer

WORKERS = 8
ROUNDS = 200
PATIENT = Acquisition(timeout_ms=110_000)
"""The default policy with 10 retries, but a long time limit."""


class Ledger:
    """A counter and a log on disk. Only the lock protects them."""

    def __init__(self, folder: Path) -> None:
        self.counter = folder / "counter"
        self.log = folder / "log"
        self.counter.write_text("0")
        self.log.write_text("")

    def write(self, number: int, fence: str) -> None:
        self.counter.write_text(str(number))
        with self.log.open("a") as log:
            log.write(fence + "\n")

    def check(self, updates: int) -> None:
        fences = self.log.read_text().split()
        assert int(self.counter.read_text()) == updates, "an update was lost"
        assert len(fences) == updates
        assert fences == sorted(set(fences)), "a later write carried an earlier fence"


def test_eight_processes_lose_no_update_and_fences_increase_in_the_order_of_the_writes(
    syncguard_redis: RedisServer, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    program = Path(__file__).with_name("ledger_worker.py")
    arguments = [str(syncguard_redis.port), str(tmp_path), str(ROUNDS)]
    workers = [subprocess.Popen([sys.executable, program, *arguments]) for _ in range(WORKERS)]
    # A worker that raised AcquisitionTimeout would exit with 1.
    assert [worker.wait() for worker in workers] == [0] * WORKERS
    ledger.check(WORKERS * ROUNDS)


def test_eight_asyncio_tasks_lose_no_update_and_fences_increase_in_the_order_of_the_writes(
    syncguard_redis: RedisServer, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)

    async def work_async(backend: AsyncRedisBackend) -> None:
        for _ in range(ROUNDS):
            async with aio.lock(backend, "ledger", ttl_ms=30_000, acquisition=PATIENT) as held:
                number = int(ledger.counter.read_text())
                await asyncio.sleep(0.0005)
                ledger.write(number + 1, held.fence)

    async def main() -> None:
        async with redis.asyncio.Redis(port=syncguard_redis.port) as client:
            async with AsyncRedisBackend(client) as backend:
                await asyncio.gather(*(work_async(backend) for _ in range(WORKERS)))

    asyncio.run(main())
    ledger.check(WORKERS * ROUNDS)
