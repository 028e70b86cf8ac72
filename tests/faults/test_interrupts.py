"""What strikes in the middle of a call, Ctrl-C or a time limit: it passes, and no lock stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
import redis

from syncguard import LockLost, lock
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


class TimeLimit(Exception):
    """An interrupt that is an ordinary exception, as task queues raise it."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=[KeyboardInterrupt, TimeLimit, LockLost])
def interrupt(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """Raised in the main thread by SIGALRM, in whatever it is doing then."""
    kind: type[BaseException] = request.param

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, strike)
    yield kind
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def strike_while_hanging(server: RedisServer) -> None:
    """Pause Redis, let the interrupt strike in 0.2 s, and resume in 0.4 s."""
    server.pause()
    threading.Timer(0.4, server.resume).start()
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def test_an_interrupted_acquire_leaves_no_lock_and_lets_the_interrupt_through(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with RedisBackend(redis.Redis(port=server.port)) as backend:
        assert not backend.is_locked("warm")
        with pytest.raises(interrupt):
            strike_while_hanging(server)
            backend.acquire("k", ttl_ms=60_000)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_after_an_interrupt_no_call_reads_the_reply_to_another(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with RedisBackend(redis.Redis(port=server.port)) as backend:
        held = backend.acquire("held", ttl_ms=60_000)
        assert held.ok
        with pytest.raises(interrupt):
            strike_while_hanging(server)
            backend.is_locked("held")
        # Were the reply "1" still in the connection, this would be True.
        assert backend.is_locked("free") is False
        assert backend.release(held.lock_id).ok


def test_a_release_that_is_interrupted_on_leaving_a_block_is_tried_again(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with RedisBackend(redis.Redis(port=server.port)) as backend:
        with pytest.raises(interrupt):
            with lock(backend, "k", ttl_ms=60_000):
                strike_while_hanging(server)
        assert not backend.is_locked("k")


def test_an_interrupted_wait_leaves_no_lock(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with RedisBackend(redis.Redis(port=server.port)) as backend:
        holder = backend.acquire("k", ttl_ms=60_000)
        assert holder.ok
        with pytest.raises(interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            lock(backend, "k", ttl_ms=60_000).__enter__()
        holder.release()
        assert backend.count_live_locks() == 0


def test_interrupts_at_random_moments_leave_no_lock(server: RedisServer) -> None:
    """Some hundred of them, in a process of its own: a crash of it must fail only this test."""
    ended = subprocess.run(
        [sys.executable, "-c", RANDOM_INTERRUPTS, str(server.port)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "interrupted" in ended.stdout


RANDOM_INTERRUPTS = """
import random, signal, sys, time
import redis
from syncguard import LockError, lock
from syncguard.redis import RedisBackend

class TimeLimit(Exception):
    pass

def strike(*_):
    raise TimeLimit

signal.signal(signal.SIGALRM, strike)
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
observer = redis.Redis(port=int(sys.argv[1]))
struck = 0
for n in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        try:
            with lock(backend, "k", ttl_ms=60_000):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeLimit:
        struck += 1
    except LockError as error:
        assert error.code != "AcquisitionTimeout", "a lock was left behind"
    deadline = time.monotonic() + 2
    while observer.exists("syncguard:k"):
        assert time.monotonic() < deadline, "a lock was left behind"
assert struck > 10, struck
print("interrupted", struck)
"""
