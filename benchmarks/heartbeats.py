"""What many heartbeats cost: processor time of the client and of Redis, as a share of one core.

A process holds 10,000 locks with a TTL of 3 s, so each lock is extended once a second. Processor
time, not the clock: other load on the machine does not change it.

    python benchmarks/heartbeats.py [--locks 10000] [--ttl-ms 3000] [--seconds 6] [--asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextvars import Context
from pathlib import Path

from syncguard import aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

_TICKS = os.sysconf("SC_CLK_TCK")


def server_seconds(pid: int) -> float:
    """Processor time of another process, from Linux's /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Shares:
    """Measures from its creation to ``read``."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._client = server.client()
        self._before = self._read()

    def _read(self) -> tuple[float, float, float, int]:
        calls = self._client.info("commandstats").get("cmdstat_pexpireat", {"calls": 0})["calls"]
        return time.perf_counter(), time.process_time(), server_seconds(self._server.pid), calls

    def read(self) -> dict[str, float]:
        wall, mine, theirs, calls = (
            after - before for before, after in zip(self._before, self._read(), strict=True)
        )
        return {
            "client": mine / calls,
            "server": theirs / calls,
            "extensions a second": calls / wall,
        }


def blocking(server: RedisServer, locks: int, ttl_ms: int, seconds: float) -> dict[str, float]:
    with RedisBackend(server.client()) as backend:
        held = [lock(backend, f"key:{n}", ttl_ms=ttl_ms, auto_extend=True) for n in range(locks)]
        for each in held:
            Context().run(each.__enter__)  # as if each lock had a caller of its own
        time.sleep(ttl_ms / 1000)
        shares = Shares(server)
        time.sleep(seconds)
        return shares.read()


async def in_loop(server: RedisServer, locks: int, ttl_ms: int, seconds: float) -> dict[str, float]:
    async with AsyncRedisBackend.from_url(server.url) as backend:
        held = [
            aio.lock(backend, f"key:{n}", ttl_ms=ttl_ms, auto_extend=True) for n in range(locks)
        ]
        # In tasks: one caller would have all of them on its stack of held locks.
        for each in held:
            await asyncio.create_task(each.__aenter__())
        await asyncio.sleep(ttl_ms / 1000)
        shares = Shares(server)
        await asyncio.sleep(seconds)
        return shares.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--ttl-ms", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--asyncio", action="store_true")
    options = parser.parse_args()
    with RedisServer() as server:
        arguments = (server, options.locks, options.ttl_ms, options.seconds)
        shares = asyncio.run(in_loop(*arguments)) if options.asyncio else blocking(*arguments)
    client, server = (shares[side] * 1e6 for side in ("client", "server"))
    print(f"client {client:.1f} us, server {server:.1f} us an extension")
    print(f"{shares['extensions a second']:.0f} extensions a second")


if __name__ == "__main__":
    main()
