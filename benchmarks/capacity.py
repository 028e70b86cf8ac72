"""What one lock costs a Redis: processor time of each operation, and memory. For capacity planning.

Starts a redis-server of its own. Prints processor time, not elapsed time: that of the server for
one operation, whatever else the machine does, and that of the client for one heartbeat. Run it on
an idle machine all the same: a busy one has cold caches.

    python benchmarks/capacity.py [number of locks]
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable

import redis

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

ROUNDS = 10
BATCH = 1_000
TTL_MS = 3_600_000
HOLDER = "shop.tasks.settle[c1f5]@web1"


def main(number: int) -> None:
    with RedisServer() as server, server.client() as client:
        options = {"key_prefix": "shop", "fence_floor": "clock"}
        with RedisBackend.from_url(server.url, **options) as backend:
            info = client.info("server")
            name = info.get("server_name", "redis")
            print(f"{name} {info.get(f'{name}_version')}, {number:,} locks")
            memory(backend, client, number)
            processor_time(backend, client)


def memory(backend: RedisBackend, client: redis.Redis, number: int) -> None:
    """Bytes of a live lock, and of the fence counter that stays."""

    def used() -> int:
        return int(client.info("memory")["used_memory"])

    before = used()
    lock_ids = acquired(backend, number)
    live = used()
    for start in range(0, number, BATCH):
        backend.release_many(lock_ids[start : start + BATCH])
    left = used()
    print(f"live lock      {(live - left) / number:8.0f} bytes, released after use")
    print(f"fence counter  {(left - before) / number:8.0f} bytes, for each key, for ever")


def processor_time(backend: RedisBackend, client: redis.Redis) -> None:
    lock_ids: list[str] = []

    def acquire() -> None:
        lock_ids[:] = acquired(backend, BATCH)

    def extend() -> None:
        for lock_id in lock_ids:
            backend.extend(lock_id, TTL_MS)

    def heartbeat() -> None:
        channel = backend.open_extend_channel(60_000)
        assert channel is not None
        channel.send([(lock_id, TTL_MS) for lock_id in lock_ids])
        answers = 0
        while answers < BATCH:
            select.select([channel], [channel] if channel.wants_to_write else [], [])
            answers += len(channel.receive())
        channel.close()

    def release() -> None:
        for lock_id in lock_ids:
            backend.release(lock_id)

    def release_many() -> None:
        backend.release_many(lock_ids)

    steps: dict[str, Callable[[], None]] = {
        "acquire, one at a time": acquire,
        "extend, one at a time": extend,
        "extend, by heartbeats": heartbeat,
        "release, one at a time": release,
        "acquire again": acquire,
        "release, in batches": release_many,
    }
    server_us: dict[str, list[float]] = {name: [] for name in steps}
    client_us: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, run in steps.items():
            before, begun = cpu(client), time.process_time()
            run()
            client_us[name].append((time.process_time() - begun) / BATCH * 1e6)
            server_us[name].append((cpu(client) - before) / BATCH * 1e6)
    for name in steps:
        print(
            f"{name:24s} server {min(server_us[name]):6.1f} µs,"
            f" client {min(client_us[name]):6.1f} µs"
        )


def cpu(client: redis.Redis) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def acquired(backend: RedisBackend, number: int) -> list[str]:
    lock_ids = []
    for n in range(number):
        result = backend.acquire(f"invoice:{n:07d}", TTL_MS, holder=HOLDER)
        assert result.ok
        lock_ids.append(result.lock_id)
    return lock_ids


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
