"""Measures every row of the table on the page Speed, prints it, and writes it into the page.

Each measurement runs in a process of its own, for a limited time. All together take less than ten
minutes on an idle machine. Do not publish figures of a busy one.

    tox run -e benchmarks                       print the table, and write it into the page
    tox run -e benchmarks -- --only asyncio     only what has this text in its name; only print
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable

import speed_page

from syncguard.testing import RedisServer

Measurement = Callable[[], dict[str, float]]
_TIMEOUT_S = 240


def _celery() -> dict[str, float]:
    import celery_tasks

    ratios = celery_tasks.run(rounds=80, tasks=25, concurrency=2)
    return {
        "celery_locked": ratios["@locked_task"],
        "celery_publish": ratios['@locked_task at="publish"'],
        "celery_singleton": ratios["celery-singleton"],
    }


def _heartbeats(kind: str) -> dict[str, float]:
    import heartbeats

    with RedisServer() as server:
        shares = (
            heartbeats.blocking(server, 10_000, 3_000, 6.0)
            if kind == "blocking"
            else asyncio.run(heartbeats.in_loop(server, 10_000, 3_000, 6.0))
        )
    # Of one core, for the 10,000 extensions a second that this needs: a busy machine makes fewer.
    return {
        f"heartbeats_{kind}_{side}": shares[side] * 10_000 * 100 for side in ("client", "server")
    }


def measurements() -> dict[str, Measurement]:
    import measure_asyncio
    import measure_blocking
    import measure_process
    import measure_server

    return {
        "asyncio one task": measure_asyncio.one_task,
        "asyncio fifty tasks": measure_asyncio.fifty_tasks,
        "asyncio hand-over": measure_asyncio.hand_over,
        "blocking one thread": measure_blocking.one_thread,
        "blocking eight threads": measure_blocking.eight_threads,
        "blocking contended": measure_blocking.contended,
        "server memory": measure_server.memory,
        "heartbeats blocking": lambda: _heartbeats("blocking"),
        "heartbeats asyncio": lambda: _heartbeats("asyncio"),
        "server time": measure_server.time_in_redis,
        "celery": _celery,
        "server listing": measure_server.listing,
        "import": measure_process.import_times,
        "growth blocking": measure_process.blocking_growth,
        "growth asyncio": measure_process.asyncio_growth,
    }


def in_own_process(name: str) -> dict[str, float]:
    started = time.perf_counter()
    command = [sys.executable, __file__, "--measure", name]
    found: dict[str, float] = {}
    outcome = ""
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=_TIMEOUT_S, check=True, text=True
        )
        found = json.loads(ended.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        outcome = f", failed: {type(error).__name__}"
    print(f"{name}: {time.perf_counter() - started:.0f} s{outcome}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        with contextlib.redirect_stdout(sys.stderr):
            found = measurements()[options.measure]()
        print(json.dumps(found))
        return 0
    values: dict[str, float] = {}
    names = [name for name in measurements() if options.only in name]
    for name in names:
        values |= in_own_process(name)
    with RedisServer() as server:
        where = speed_page.conditions(server.client().info("server")["redis_version"])
    text = f"{where}.\n\n{speed_page.table(values)}"
    print(text)
    if not options.only:
        speed_page.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
