"""An interrupt during a call (Ctrl-C, a time limit): it is raised, and no lock stays held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
import redis
from clients import backend_on
from wait_until import wait_until

from syncguard import Acquisition, LockLost, lock
from syncguard.redis import RedisBackend
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

FAR = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")
"""One wait lasts longer than the test."""


hanging: list[RedisServer] = []
"""Resumed a moment after the interrupt, however late that comes."""


class TimeLimit(Exception):
    """An interrupt that is an ordinary exception, like the time limits of task queues."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=[KeyboardInterrupt, TimeLimit, LockLost])
def interrupt(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """The handler of SIGALRM raises this in the main thread, at any point."""
    kind: type[BaseException] = request.param

    def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # once
        while hanging:
            threading.Timer(0.2, hanging.pop().resume).start()
        raise kind

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    yield kind
    hanging.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupt_while_redis_hangs(server: RedisServer) -> None:
    """Pause Redis, interrupt after 0.2 s, and resume 0.2 s after that."""
    server.pause()
    hanging.append(server)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def interrupt_when_a_caller_waits(server: RedisServer) -> None:
    with server.client() as observer:
        wait_until(lambda: observer.info("clients")["blocked_clients"] == 1)
    # Repeatedly: Python sees a signal that comes right before a poll only after the poll.
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.2)


def test_an_interrupted_acquire_leaves_no_lock_and_raises_the_interrupt(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
        assert not backend.is_locked("warm")
        with pytest.raises(interrupt):
            interrupt_while_redis_hangs(server)
            backend.acquire("k", ttl_ms=60_000)
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_an_interrupted_adopt_leaves_no_lock_and_raises_the_interrupt(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
        acquired = backend.acquire("k", ttl_ms=60_000)
        assert acquired.ok
        adopted = backend.adopt(acquired.lock_id)  # loads the script into Redis
        assert adopted.ok
        with pytest.raises(interrupt):
            interrupt_while_redis_hangs(server)
            backend.adopt(adopted.lock_id, ttl_ms=60_000)
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_after_an_interrupt_no_call_reads_the_reply_of_another_call(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
        held = backend.acquire("held", ttl_ms=60_000)
        assert held.ok
        with pytest.raises(interrupt):
            interrupt_while_redis_hangs(server)
            backend.is_locked("held")
        # This would be True if the reply "1" were still in the connection.
        assert backend.is_locked("free") is False
        assert backend.release(held.lock_id).ok


def test_an_interrupted_release_at_the_end_of_a_block_is_retried(
    server: RedisServer, interrupt: type[BaseException]
) -> None:
    with backend_on(server.port) as backend:
        with pytest.raises(interrupt):
            with lock(backend, "k", ttl_ms=60_000):
                interrupt_while_redis_hangs(server)
        assert not backend.is_locked("k")


@pytest.mark.parametrize(
    "interrupt",
    # The last three are also errors of redis-py, but here a time limit raises them.
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
        interrupts = threading.Thread(target=interrupt_when_a_caller_waits, args=(server,))
        with pytest.raises(interrupt):
            interrupts.start()
            lock(backend, "k", ttl_ms=60_000, acquisition=FAR).__enter__()
        interrupts.join()
        with server.client() as observer:
            wait_until(lambda: observer.info("clients")["blocked_clients"] == 0)
        # Only the connection that the backend keeps.
        assert len(client.connection_pool._in_use_connections) == 1
        holder.release()
        assert backend.count_live_locks() == 0


def run(program: str, server: RedisServer) -> str:
    """Run in a separate process: a crash must fail only this test."""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(server.port)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        # The programs below use sys.settrace, and so does coverage.
        env={name: value for name, value in os.environ.items() if "COVERAGE" not in name},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_an_interrupt_at_any_line_of_syncguard_leaves_no_lock(server: RedisServer) -> None:
    assert int(run(AT_EVERY_LINE, server)) > 100


AT_EVERY_LINE = """
import sys, time
import redis
from syncguard import current_lock, lock
from syncguard.redis import RedisBackend
from syncguard.redis.undo_thread import undo_thread

class TimeLimit(Exception):
    pass

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
    # The "try:" around all of __exit__. No code can catch an interrupt before it.
    return frame.f_code.co_name == "__exit__" and frame.f_lineno <= first_line_of(frame.f_code)

def first_line_of(code):
    return min(line for _, _, line in code.co_lines() if line and line > code.co_firstlineno + 4)

one_lock = lock(backend, "k", ttl_ms=60_000)  # can be used again after an interrupt
tried = 0
while True:
    tried += 1
    lines_left = tried
    sys.settrace(trace)
    try:
        with one_lock:
            pass
    except TimeLimit:
        sys.settrace(None)
    else:
        sys.settrace(None)
        if lines_left > 0:
            break
    finally:
        sys.settrace(None)
    deadline = time.monotonic() + 20
    while undo_thread.pending:
        assert time.monotonic() < deadline, f"not undone after an interrupt at {place}"
        time.sleep(0.001)
    assert not observer.exists("syncguard:k"), f"still held after an interrupt at {place}"
    assert current_lock() is None, f"still current after an interrupt at {place}"
    assert observer.zcard("syncguard:id::live") == 0
print(tried)
"""


def test_an_interrupt_at_the_entry_of_any_function_leaks_no_connection(
    server: RedisServer,
) -> None:
    """Signal handlers run at function entry. Leaked connections would exhaust the pool."""
    assert int(run(INTO_EVERY_FUNCTION, server)) > 100


INTO_EVERY_FUNCTION = """
import sys
import redis
from syncguard import Acquisition, LockError, current_lock, lock
from syncguard.redis import RedisBackend
from syncguard.redis._transport.connections import runner_pool

class TimeLimit(Exception):
    pass

SHORT = Acquisition(timeout_ms=12, retry_delay_ms=12, jitter="none")
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
pool = runner_pool(backend._client)
held = backend.acquire("held", 600_000)
calls_left, place = 0, ""

def trace(frame, event, _argument):
    global calls_left, place
    code = frame.f_code
    if code.co_name == "__exit__":
        return  # no code can catch an interrupt before its first line: the TTL ends the lock
    if "/syncguard/" in code.co_filename.replace("\\\\", "/") or code.co_name == "release":
        calls_left -= 1
        if calls_left == 0:
            place = f"{code.co_filename}: {code.co_name}"
            raise TimeLimit

def interrupted_at_every_call(work):
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
        assert out == 0, f"{out} connections leaked by an interrupt at {place}"
        assert current_lock() is None, f"still current after an interrupt at {place}"
        for listener in getattr(pool, "_syncguard_listeners", {}).values():
            assert not len(listener._waiters), f"still waiting after an interrupt at {place}"
            assert not listener._leader, f"still the leader after an interrupt at {place}"
        if calls_left > 0:
            return tried

def take_and_leave():
    with lock(backend, "k", ttl_ms=60_000):
        pass

def wait():
    lock(backend, "held", acquisition=SHORT).__enter__()

print(interrupted_at_every_call(take_and_leave) + interrupted_at_every_call(wait))
"""


def test_interrupts_at_random_moments_do_not_crash_the_process(server: RedisServer) -> None:
    """hiredis crashed here when a signal handler raised while it packed a number."""
    assert int(run(AT_RANDOM_MOMENTS, server)) > 10


AT_RANDOM_MOMENTS = """
import random, signal, sys
import redis
from syncguard import LockError, lock
from syncguard.redis import RedisBackend

class TimeLimit(Exception):
    pass

def raise_interrupt(*_):
    raise TimeLimit

signal.signal(signal.SIGALRM, raise_interrupt)
backend = RedisBackend(redis.Redis(port=int(sys.argv[1])), on_release_error=lambda *_: None)
observer = redis.Redis(port=int(sys.argv[1]))
interrupted = 0
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        try:
            with lock(backend, "k", ttl_ms=60_000):
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeLimit:
        interrupted += 1
    except LockError:
        pass
    observer.delete("syncguard:k")
    assert backend.is_locked("k") is False, "the reply to another call"
print(interrupted)
"""
