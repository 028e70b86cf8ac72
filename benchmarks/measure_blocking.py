"""The rows of blocking locks: one thread, several threads on their own keys, and on one key."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable

import redis
import redis_lock
from alternate import alternate, difference, pinned_server, ratio

from syncguard import Acquisition, lock
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

_PING = b"*1\r\n$4\r\nPING\r\n"


def timed(run: Callable[[], object], pairs: int) -> Callable[[], float]:
    """Microseconds for one run."""

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(pairs):
            run()
        return (time.perf_counter() - started) / pairs * 1e6

    return measure


def one_thread() -> dict[str, float]:
    with pinned_server() as server:
        backend = RedisBackend(server.client())
        plain = server.client().lock("redis-py", timeout=30)
        wire = socket.create_connection((server.host, server.port))
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def acquire_and_release() -> None:
            backend.release(backend.acquire("ours", 30_000).lock_id)

        def block() -> None:
            with lock(backend, "ours"):
                pass

        def redis_py() -> None:
            plain.acquire()
            plain.release()

        def pings() -> None:
            for _ in range(2):
                wire.sendall(_PING)
                wire.recv(64)

        runs = (acquire_and_release, block, redis_py, pings)
        found = alternate({run.__name__: timed(run, 40) for run in runs}, 150)
    pair = found["acquire_and_release"]
    return {
        "blocking_one": ratio(pair, found["redis_py"]),
        "blocking_lock": ratio(found["block"], found["redis_py"]),
        "blocking_pings": ratio(pair, found["pings"]),
        "beyond_blocking": difference(found["block"], pair),
    }


def in_threads(turns: Callable[[int], Callable[[], object]], count: int, seconds: float) -> float:
    """How many turns a second all threads have together."""
    done = [0] * count
    begin = threading.Barrier(count)

    def run(number: int) -> None:
        turn = turns(number)
        turn()
        begin.wait()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            turn()
            done[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


def eight_threads() -> dict[str, float]:
    with RedisServer() as server:
        backend = RedisBackend(server.client())
        client = server.client()

        def ours(number: int) -> Callable[[], object]:
            return lambda: backend.release(backend.acquire(f"k{number}", 30_000).lock_id)

        def theirs(number: int) -> Callable[[], object]:
            plain = client.lock(f"theirs{number}", timeout=30)
            return lambda: plain.acquire() and plain.release()

        found = alternate(
            {
                "ours": lambda: in_threads(ours, 8, 0.5),
                "theirs": lambda: in_threads(theirs, 8, 0.5),
            },
            9,
        )
    return {"blocking_eight": ratio(found["ours"], found["theirs"])}


def contended() -> dict[str, float]:
    rows: dict[str, float] = {}
    patient = Acquisition(timeout_ms=60_000, retry_delay_ms=1_000, max_retries=1_000)
    with RedisServer() as server:
        backend = RedisBackend(server.client())
        client: redis.Redis = server.client()

        def ours(_number: int) -> Callable[[], object]:
            def turn() -> None:
                with lock(backend, "ours", acquisition=patient):
                    pass

            return turn

        def theirs(_number: int) -> Callable[[], object]:
            def turn() -> None:
                with redis_lock.Lock(client, "theirs", expire=30):
                    pass

            return turn

        for count in (2, 8, 32):
            found = alternate(
                {
                    "ours": lambda count=count: in_threads(ours, count, 1.0),
                    "theirs": lambda count=count: in_threads(theirs, count, 1.0),
                },
                5,
            )
            rows[f"contended_{count}"] = statistics.median(found["ours"]) / statistics.median(
                found["theirs"]
            )
    return rows
