"""Acquire and release without contention: SyncGuard against its peers, as ratios in one run.

One blocking client, one connection, hiredis where it is installed, a private Redis on
loopback. The contenders take turns in short rounds, so that other load on the machine affects all
of them alike; a ratio is the median of the ratios in the rounds. Two bare PINGs on a raw socket are
the minimum: no lock can take fewer round trips than two.

The cores on which client and server run matter most, and the scheduler chooses other ones in each
run. So they are fixed: first each has its own core, as if Redis ran on another machine, and the
goals are for that; then both share one core.

    python benchmarks/uncontended.py [--rounds 200] [--pairs 50]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable

import redis
import redis_lock

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

PING = b"*1\r\n$4\r\nPING\r\n"
GOALS = {"redis-py Lock": 0.9, "two bare PINGs": 1.6}
ONE_CORE = "client and Redis on one core"


def contenders(server: RedisServer) -> dict[str, Callable[[], None]]:
    backend = RedisBackend(server.client())
    plain = server.client().lock("redis-py", timeout=30)
    other = redis_lock.Lock(server.client(), "python-redis-lock", expire=30)
    wire = socket.create_connection((server.host, server.port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def syncguard() -> None:
        result = backend.acquire("invoice:42", ttl_ms=30_000)
        assert result.ok
        assert backend.release(result.lock_id).ok

    def redis_py() -> None:
        assert plain.acquire()
        plain.release()

    def python_redis_lock() -> None:
        assert other.acquire()
        other.release()

    def pings() -> None:
        for _ in range(2):
            wire.sendall(PING)
            wire.recv(64)

    return {
        "SyncGuard": syncguard,
        "redis-py Lock": redis_py,
        "python-redis-lock": python_redis_lock,
        "two bare PINGs": pings,
    }


def measure(
    names: dict[str, Callable[[], None]], rounds: int, pairs: int
) -> list[dict[str, float]]:
    """Microseconds for one acquire and release, in each round."""
    taken: list[dict[str, float]] = []
    for _ in range(rounds):
        times: dict[str, float] = {}
        for name, run in names.items():
            started = time.perf_counter()
            for _ in range(pairs):
                run()
            times[name] = (time.perf_counter() - started) / pairs * 1e6
        taken.append(times)
    return taken


def compare(places: str, cores: tuple[int, int] | None, options: argparse.Namespace) -> None:
    """Run all contenders with client and server on these cores, and print the table."""
    with RedisServer() as server:
        if cores is not None:
            os.sched_setaffinity(0, {cores[0]})
            os.sched_setaffinity(server.pid, {cores[1]})
        names = contenders(server)
        for run in names.values():
            run()
        rounds = measure(names, options.rounds, options.pairs)
    print(f"\n{places:<34}{'median':>8}{'SyncGuard takes':>18}{'goal':>10}")
    for name in names:
        median = statistics.median(times[name] for times in rounds)
        ratio = statistics.median(times["SyncGuard"] / times[name] for times in rounds)
        goal = f"<= {GOALS[name]}" if name in GOALS and places != ONE_CORE else ""
        print(f"{name:<34}{median:>5.0f} us{ratio:>16.2f} x{goal:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=50)
    options = parser.parse_args()
    print(f"redis-py {redis.__version__}, {_parser()}; {options.rounds} x {options.pairs} pairs")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        compare("cores chosen by the scheduler", None, options)
        return
    compare("Redis on its own core", (cores[0], cores[1]), options)
    compare(ONE_CORE, (cores[0], cores[0]), options)


def _parser() -> str:
    try:
        import hiredis
    except ImportError:
        return "redis-py's own parser"
    return f"hiredis {hiredis.__version__}"


if __name__ == "__main__":
    main()
