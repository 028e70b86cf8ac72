"""The rows of the server: memory, time and requests, as Redis itself counts them."""

from __future__ import annotations

import statistics
import time
from typing import Any

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

_LOCKS = 10_000


def _script_stats(client: Any) -> tuple[int, int]:
    """(calls, microseconds) of all scripts since the last reset."""
    stats = client.info("commandstats")
    found = [stats[name] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats]
    return sum(each["calls"] for each in found), sum(each["usec"] for each in found)


def memory() -> dict[str, float]:
    """With ids and keys of equal length; the parts by MEMORY USAGE, the whole by used_memory."""
    with RedisServer() as server:
        client, backend = server.client(), RedisBackend(server.client())
        first = backend.acquire("invoice:100000", 600_000)
        parts = {
            "record": "syncguard:invoice:100000",
            "index": f"syncguard:id:{first.lock_id}",
            "counter": "syncguard:fence:syncguard:invoice:100000",
        }
        rows = {f"memory_{part}": float(client.memory_usage(key)) for part, key in parts.items()}
        before = client.info("memory")["used_memory"]
        for number in range(_LOCKS):
            assert backend.acquire(f"invoice:{100_001 + number}", 600_000).ok
        after = client.info("memory")["used_memory"]
        live = client.memory_usage("syncguard:id::live", samples=0)
        rows["memory_live"] = live / (_LOCKS + 1)
        rows["memory_whole"] = (after - before) / _LOCKS
    return rows


def time_in_redis() -> dict[str, float]:
    times: dict[str, list[float]] = {"server_acquire": [], "server_release": []}
    with RedisServer() as server:
        client, backend = server.client(), RedisBackend(server.client())
        for _ in range(10):
            client.config_resetstat()
            ids = [backend.acquire(f"k{number}", 600_000).lock_id for number in range(500)]
            calls, microseconds = _script_stats(client)
            times["server_acquire"].append(microseconds / calls)
            client.config_resetstat()
            for lock_id in ids:
                backend.release(lock_id)
            calls, microseconds = _script_stats(client)
            times["server_release"].append(microseconds / calls)
    return {name: statistics.median(each) for name, each in times.items()}


_FILL = """
for number = ARGV[1], ARGV[2] do
  redis.call('SET', 'syncguard:fence:syncguard:idle:' .. number, '000000000000001')
end
"""


def listing() -> dict[str, float]:
    rows: dict[str, float] = {}
    idle = 0
    with RedisServer() as server:
        client, backend = server.client(), RedisBackend(server.client())
        for number in range(_LOCKS):
            assert backend.acquire(f"live:{number}", 600_000).ok
        for count in (0, 100_000, 1_000_000):
            while idle < count:
                client.eval(_FILL, 0, idle, idle + 9_999)
                idle += 10_000
            durations: list[float] = []
            client.config_resetstat()
            for _ in range(30):
                started = time.perf_counter()
                assert len(backend.live_locks(100)) == 100
                durations.append(time.perf_counter() - started)
            rows["listing_requests"] = _script_stats(client)[0] / 30
            rows[f"listing_{count}"] = statistics.median(durations) * 1e3
    return rows
