"""The rows of asyncio locks: one task, 50 tasks, and tasks that pass one lock on."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio
from alternate import alternate, difference, pinned_server, ratio
from waiting import tasks, threads

from syncguard import aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer


class InLoop:
    """One event loop for all rounds, with our backend and redis-py's client."""

    def __init__(self, server: RedisServer) -> None:
        self.loop = asyncio.new_event_loop()
        self.backend = AsyncRedisBackend.from_url(server.url)
        self.client = redis.asyncio.Redis.from_url(server.url)

    def close(self) -> None:
        self.loop.run_until_complete(self.backend.aclose())
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()

    async def pair(self, key: str) -> None:
        await self.backend.release((await self.backend.acquire(key, 30_000)).lock_id)

    async def block(self, key: str) -> None:
        async with aio.lock(self.backend, key):
            pass

    async def redis_py(self, key: str) -> None:
        async with self.client.lock(f"theirs:{key}", timeout=30):
            pass

    def timed(
        self,
        run: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        *,
        count: int = 1,
        pairs: int,
    ) -> Callable[[], float]:
        """Microseconds for one pair, of so many tasks with so many pairs each."""

        async def one(number: int) -> None:
            for _ in range(pairs):
                await run(f"k{number}")

        async def all_of_them() -> None:
            if count == 1:
                await one(0)
            else:
                await asyncio.gather(*map(one, range(count)))

        def measure() -> float:
            started = clock()
            self.loop.run_until_complete(all_of_them())
            return (clock() - started) / pairs / count * 1e6

        return measure


def one_task() -> dict[str, float]:
    with pinned_server() as server:
        here = InLoop(server)
        runs = {"pair": here.pair, "block": here.block, "redis_py": here.redis_py}
        walls = alternate(
            {name: here.timed(run, time.perf_counter, pairs=30) for name, run in runs.items()}, 100
        )
        spent = alternate(
            {name: here.timed(run, time.process_time, pairs=30) for name, run in runs.items()}, 50
        )
        here.close()
    return {
        "asyncio_one": ratio(walls["block"], walls["redis_py"]),
        "asyncio_one_processor": ratio(spent["block"], spent["redis_py"]),
        "beyond_asyncio": difference(walls["block"], walls["pair"]),
    }


def fifty_tasks() -> dict[str, float]:
    with pinned_server() as server:
        here = InLoop(server)
        runs = {"block": here.block, "redis_py": here.redis_py}
        found = alternate(
            {
                name: here.timed(run, time.perf_counter, count=50, pairs=10)
                for name, run in runs.items()
            },
            20,
        )
        here.close()
    return {"asyncio_fifty": ratio(found["redis_py"], found["block"])}


def hand_over() -> dict[str, float]:
    """The median of the hand-overs among tasks, of that among threads."""
    rows: dict[str, float] = {}

    def median(durations: list[float]) -> float:
        return statistics.median(durations) * 1e6

    async def among_tasks(url: str, count: int) -> Any:
        async with AsyncRedisBackend.from_url(url) as backend:
            return await tasks(backend, aio.lock, count, 1, time.perf_counter() + 1.0)

    with RedisServer() as server:
        backend = RedisBackend(server.client())
        for count in (2, 32):
            found = alternate(
                {
                    "threads": lambda count=count: median(
                        threads(backend, lock, count, time.perf_counter() + 1.0)
                    ),
                    "tasks": lambda count=count: median(
                        asyncio.run(among_tasks(server.url, count))
                    ),
                },
                5,
            )
            rows[f"asyncio_handover_{count}"] = ratio(found["tasks"], found["threads"])
    return rows
