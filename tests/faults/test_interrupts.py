"""What strikes in the middle of a call, Ctrl-C or a time limit: it passes, and no lock stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace

import pytest
import redis
from clients import backend_on
from wait_until import wait_until

from syncguard import Acquisition, LockLost, lock
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

FAR = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")
"""A waiter that is in one wait for all of the test."""


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
    with backend_on(server.port) as backend:
        assert not backend.is_locked("warm")
        with pytest.raises(interrupt):
            strike_while_hanging(server)
            backend.acquire("k", ttl_ms=60_000)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_an_interrupted_adopt_leaves_no_lock_and_lets_the_interrupt_through(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
        acquired = backend.acquire("k", ttl_ms=60_000)
        assert acquired.ok
        handed_on = backend.adopt(acquired.lock_id)  # so that Redis knows the script
        assert handed_on.ok
        with pytest.raises(interrupt):
            strike_while_hanging(server)
            backend.adopt(handed_on.lock_id, ttl_ms=60_000)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_a_request_that_arrives_after_its_undoing_is_undone_too(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_on(server.port) as backend:
        call = backend.acquire_call("k", 60_000, None, 0)
        arrived: list[object] = []

        def sleep(seconds: float) -> None:
            if seconds and not arrived:
                arrived.append(backend.run_acquire(call, 60_000))

        monkeypatch.setattr("syncguard.redis.redis_backend.time", SimpleNamespace(sleep=sleep))
        backend.undo(call.lock_id)
        assert arrived
        assert not backend.is_locked("k")


def test_after_an_interrupt_no_call_reads_the_reply_to_another(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
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
    with backend_on(server.port) as backend:
        with pytest.raises(interrupt):
            with lock(backend, "k", ttl_ms=60_000):
                strike_while_hanging(server)
        assert not backend.is_locked("k")


@pytest.mark.parametrize(
    "interrupt",
    # The last three might as well be Redis's: but they are somebody's time limit.
    [KeyboardInterrupt, TimeLimit, LockLost, TimeoutError, ConnectionError, OSError],
    indirect=True,
)
def test_an_interrupted_wait_ends_and_leaves_no_lock(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    client = redis.Redis(port=server.port)
    with client, RedisBackend(client) as backend:
        holder = backend.acquire("k", ttl_ms=60_000)
        assert holder.ok
        with pytest.raises(interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            lock(backend, "k", ttl_ms=60_000, acquisition=FAR).__enter__()
        with server.client() as observer:
            wait_until(lambda: observer.info("clients")["blocked_clients"] == 0)
        assert len(client.connection_pool._in_use_connections) == 1  # the one that we keep
        holder.release()
        assert backend.count_live_locks() == 0


def run(program: str, server: RedisServer) -> str:
    """Run in a process of its own: a crash there must fail only this test."""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(server.port)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # The tracing below and that of coverage exclude each other.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_an_interrupt_at_any_line_of_ours_leaves_no_lock(server: RedisServer) -> None:
    assert int(run(AT_EVERY_LINE, server)) > 100


AT_EVERY_LINE = """
import sys
import redis
from syncguard import current_lock, lock
from syncguard.redis import RedisBackend
from syncguard.redis import redis_backend

class TimeLimit(Exception):
    pass

redis_backend.UNDO_PAUSES_S = (0.0,)  # nothing can be under way: we strike between lines
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
observer = redis.Redis(port=int(sys.argv[1]))
lines_left, place = 0, []

def trace(frame, event, _argument):
    global lines_left
    if "/syncguard/" not in frame.f_code.co_filename.replace("\\\\", "/"):
        return None
    if event == "line" and not is_first_line_of_leaving(frame):
        lines_left -= 1
        if lines_left == 0:
            place[:] = [f"{frame.f_code.co_filename}:{frame.f_lineno}"]
            raise TimeLimit
    return trace

def is_first_line_of_leaving(frame):
    # The try: around all of __exit__. What strikes before it, no code of ours can catch.
    return frame.f_code.co_name == "__exit__" and frame.f_lineno <= first_line_of(frame.f_code)

def first_line_of(code):
    return min(line for _, _, line in code.co_lines() if line and line > code.co_firstlineno + 4)

ours = lock(backend, "k", ttl_ms=60_000)  # one for all: an interrupt leaves it ready for use
tried = 0
while True:
    tried += 1
    lines_left = tried
    sys.settrace(trace)
    try:
        with ours:
            pass
    except TimeLimit:
        sys.settrace(None)
    else:
        sys.settrace(None)
        if lines_left > 0:
            break
    finally:
        sys.settrace(None)
    assert not observer.exists("syncguard:k"), f"left behind by an interrupt at {place}"
    assert current_lock() is None, f"still current after an interrupt at {place}"
    assert observer.zcard("syncguard:id::live") == 0
print(tried)
"""


def test_an_interrupt_on_the_way_into_any_function_takes_no_connection_with_it(
    server: RedisServer,
) -> None:
    """There a signal's handler runs: else they would use the pool up, one by one."""
    assert int(run(INTO_EVERY_FUNCTION, server)) > 100


INTO_EVERY_FUNCTION = """
import sys
import redis
from syncguard import Acquisition, LockError, current_lock, lock
from syncguard.redis import RedisBackend
from syncguard.redis import redis_backend
from syncguard.redis._transport.connections import runner_pool
from syncguard.redis.waiter import Listeners

class TimeLimit(Exception):
    pass

redis_backend.UNDO_PAUSES_S = (0.0,)
SHORT = Acquisition(timeout_ms=12, retry_delay_ms=12, jitter="none")
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
pool = runner_pool(backend._client)
held = backend.acquire("held", 600_000)
calls_left, place = 0, ""

def trace(frame, event, _argument):
    global calls_left, place
    code = frame.f_code
    if code.co_name == "__exit__":
        return  # before its first line, no code of ours can catch: the lock stays until its TTL
    if "/syncguard/" in code.co_filename.replace("\\\\", "/") or code.co_name == "release":
        calls_left -= 1
        if calls_left == 0:
            place = f"{code.co_filename}: {code.co_name}"
            raise TimeLimit

def struck_in_all(work):
    global calls_left
    tried = 0
    while True:
        calls_left = tried = tried + 1
        sys.settrace(trace)
        try:
            work()
        except (TimeLimit, LockError):
            pass
        finally:
            sys.settrace(None)
        out = len(pool._in_use_connections) - len(pool._syncguard_spare)
        assert out == 0, f"{out} taken by an interrupt at {place}"
        assert current_lock() is None, f"still current after an interrupt at {place}"
        assert not Listeners.on(pool)._inside, f"still listening after an interrupt at {place}"
        if calls_left > 0:
            return tried

def take_and_leave():
    with lock(backend, "k", ttl_ms=60_000):
        pass

def wait():
    lock(backend, "held", acquisition=SHORT).__enter__()

print(struck_in_all(take_and_leave) + struck_in_all(wait))
"""


def test_interrupts_at_random_moments_bring_no_process_down(server: RedisServer) -> None:
    """hiredis crashed here, when a signal handler raised while it packed a number."""
    assert int(run(AT_RANDOM_MOMENTS, server)) > 10


AT_RANDOM_MOMENTS = """
import random, signal, sys
import redis
from syncguard import LockError, lock
from syncguard.redis import RedisBackend
from syncguard.redis import redis_backend

class TimeLimit(Exception):
    pass

def strike(*_):
    raise TimeLimit

redis_backend.UNDO_PAUSES_S = (0.0,)
signal.signal(signal.SIGALRM, strike)
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
observer = redis.Redis(port=int(sys.argv[1]))
struck = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        try:
            with lock(backend, "k", ttl_ms=60_000):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeLimit:
        struck += 1
    except LockError:
        pass
    observer.delete("syncguard:k")
    assert backend.is_locked("k") is False, "the reply to another call"
print(struck)
"""
