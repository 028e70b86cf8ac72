"""Waiting for a held lock: how fast it passes from one to the next, and how many connections.

hand-over   from the moment before the holder's release to the moment after the next one's entry,
            median in microseconds; every holder releases at once and waits again
locks/s     how many such hand-overs there were in a second
connections how many connections Redis had while all waited

One private Redis on loopback. ``--against PATH`` runs the same rounds with the SyncGuard in that
directory, taking turns, so that other load on the machine affects both.

    python benchmarks/waiting.py [--rounds 5] [--seconds 1.0] [--against ../older]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SCENES = (
    "threads 2",
    "threads 8",
    "threads 32",
    "processes 8",
    "tasks 2",
    "tasks 32",
    "tasks 1000 keys 10",
)
CROWDS = ("threads 300", "tasks 800")


def policy() -> Any:
    from syncguard import Acquisition

    return Acquisition(timeout_ms=60_000, retry_delay_ms=1_000, max_retries=1_000)


def threads(backend: Any, lock: Callable[..., Any], count: int, until: float) -> list[float]:
    """Threads that pass one lock on. Returns the duration of each hand-over."""
    released: list[float] = [0.0]
    durations: list[float] = []
    how = policy()

    def take_turns() -> None:
        while time.perf_counter() < until:
            with lock(backend, "k", acquisition=how):
                now = time.perf_counter()
                if released[0]:
                    durations.append(now - released[0])
                released[0] = time.perf_counter()

    workers = [threading.Thread(target=take_turns) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return durations


async def tasks(backend: Any, lock: Any, count: int, keys: int, until: float) -> list[float]:
    released: dict[str, float] = {}
    durations: list[float] = []
    how = policy()

    async def take_turns(key: str) -> None:
        while time.perf_counter() < until:
            async with lock(backend, key, acquisition=how):
                now = time.perf_counter()
                if key in released:
                    durations.append(now - released[key])
                released[key] = time.perf_counter()

    await asyncio.gather(*(take_turns(f"k{n % keys}") for n in range(count)))
    return durations


def in_processes(url: str, count: int, seconds: float) -> list[float]:
    """Each process notes when it entered and when it left; all clocks are the machine's."""
    import redis

    command = [sys.executable, __file__, "--turns", url, str(seconds)]
    with redis.Redis.from_url(url) as client:
        client.delete("ready", "begin")
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
        while int(client.get("ready") or 0) < count:
            time.sleep(0.01)
        client.rpush("begin", *["now"] * count)
    turns = sorted(turn for each in running for turn in json.loads(each.communicate()[0]))
    return [max(0.0, after[0] - before[1]) for before, after in itertools.pairwise(turns)]


def take_turns_alone(url: str, seconds: float) -> None:
    import redis

    from syncguard import lock
    from syncguard.redis import RedisBackend

    client, how, turns = redis.Redis.from_url(url), policy(), []
    backend = RedisBackend(client)
    with lock(backend, "warm"):
        pass
    client.incr("ready")
    client.blpop(["begin"])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with lock(backend, "k", acquisition=how):
            turns.append((time.monotonic(), time.monotonic()))
    print(json.dumps(turns))


def run_scene(scene: str, url: str, seconds: float) -> list[float]:
    from syncguard import aio, lock
    from syncguard.redis import AsyncRedisBackend, RedisBackend

    kind, number, *rest = scene.split()
    count, keys = int(number), int(rest[1]) if rest else 1
    if kind == "processes":
        return in_processes(url, count, seconds)
    if kind == "threads":
        with RedisBackend.from_url(url) as backend:
            return threads(backend, lock, count, time.perf_counter() + seconds)

    async def main() -> list[float]:
        async with AsyncRedisBackend.from_url(url, max_connections=5_000) as backend:
            return await tasks(backend, aio.lock, count, keys, time.perf_counter() + seconds)

    return asyncio.run(main())


def connections(scene: str, url: str) -> int:
    """How many connections the waiters of one process have."""
    import redis

    from syncguard import aio, lock
    from syncguard.redis import AsyncRedisBackend, RedisBackend

    kind, number = scene.split()
    count, how = int(number), policy()
    observer = redis.Redis.from_url(url)
    before = len(observer.client_list())
    holder = RedisBackend(observer).acquire("k", 60_000)

    if kind == "threads":
        with RedisBackend.from_url(url, max_connections=5_000) as backend:

            def wait() -> None:
                with lock(backend, "k", acquisition=how):
                    pass

            workers = [threading.Thread(target=wait) for _ in range(count)]
            for worker in workers:
                worker.start()
            time.sleep(2)
            seen = len(observer.client_list()) - before
            holder.release()
            for worker in workers:
                worker.join()
            return seen

    async def main() -> int:
        async with AsyncRedisBackend.from_url(url, max_connections=5_000) as backend:

            async def wait() -> None:
                async with aio.lock(backend, "k", acquisition=how):
                    pass

            waiters = [asyncio.ensure_future(wait()) for _ in range(count)]
            await asyncio.sleep(2)
            seen = len(observer.client_list()) - before
            holder.release()
            await asyncio.gather(*waiters)
            return seen

    return asyncio.run(main())


def in_directory(path: Path, *arguments: str) -> Any:
    """Run this script with the SyncGuard of that directory."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    ended = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(ended.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    from syncguard.testing import RedisServer

    sides = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
    print(f"{'':22}{'':8}{'hand-over us':>14}{'locks/s':>10}")
    with RedisServer() as server:
        for scene in filter(lambda scene: options.only in scene, SCENES):
            durations: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side, path in sides.items():
                    arguments = ("--scene", scene, server.url, str(options.seconds))
                    durations[side] += in_directory(path, *arguments)
            for side, times in durations.items():
                middle = statistics.median(times) * 1e6 if times else float("nan")
                rate = len(times) / options.rounds / options.seconds
                print(f"{scene:22}{side:8}{middle:14.0f}{rate:10.0f}", flush=True)
        for scene in filter(lambda scene: options.only in scene, CROWDS):
            for side, path in sides.items():
                seen = in_directory(path, "--connections", scene, server.url)
                print(f"{scene:22}{side:8}{seen:14} connections", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--turns"]:
        take_turns_alone(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1:2] == ["--scene"]:
        with contextlib.redirect_stdout(sys.stderr):
            found = run_scene(sys.argv[2], sys.argv[3], float(sys.argv[4]))
        print(json.dumps(found))
    elif sys.argv[1:2] == ["--connections"]:
        print(json.dumps(connections(sys.argv[2], sys.argv[3])))
    else:
        main()
