"""The undo thread: when it starts, how long it tries, what it drops, what it does at exit."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from short_time_out import short_time_out
from wait_until import wait_until

from syncguard import NetworkTimeout
from syncguard.redis import RedisBackend, spent_ids
from syncguard.redis import undo_thread as module
from syncguard.redis.script_calls import Calls
from syncguard.redis.undo_connection import UndoOnLoop
from syncguard.redis.undo_thread import MAX_PENDING, Undo, UndoThread, undo_thread
from syncguard.testing import LoopThread, RedisServer

CALLS = Calls()
TTL_MS = 600_000


class Server:
    """A target that records the ids it was sent, and answers them once ``is_up``."""

    def __init__(self, *, is_up=True):
        self.is_up = is_up
        self.tries = 0
        self.answered = []

    def run(self, calls, _timeout_s, answered):
        self.tries += 1
        for call in calls:
            if not self.is_up:
                raise ConnectionError("with the lock id, which must not be logged")
            self.answered.append(call.lock_id)
            answered(call.lock_id)


def job_for(server, ttl_ms=TTL_MS):
    call = CALLS.undo(CALLS.acquire("k", ttl_ms, None).lock_id)
    return Undo(call, lambda: server, ttl_ms)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def thread():
    """A thread of the test's own."""
    own = UndoThread()
    yield own
    own.drop_jobs()


def test_the_pauses_grow_from_a_tenth_of_a_second_to_five_seconds(monkeypatch):
    job = job_for(Server())
    stopped = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr(module, "time", stopped)
    pauses = []
    for _ in range(8):
        job.postpone()
        pauses.append(job.due)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize(
    ("ttl_ms", "seconds"), [(1_000, 60), (600_000, 600), (24 * 3_600_000, 3_600)]
)
def test_an_undo_is_tried_for_the_ttl_within_a_minute_and_an_hour(ttl_ms, seconds):
    job = job_for(Server(), ttl_ms)
    assert job.until - job.due == pytest.approx(seconds)


@pytest.mark.usefixtures("fast")
def test_an_undo_is_tried_until_it_is_answered_and_then_no_more(thread):
    server = Server(is_up=False)
    thread.start()
    job = thread.enqueue(job_for(server), "lock")
    wait_until(lambda: server.tries > 3)
    assert thread.pending == 1
    server.is_up = True
    wait_until(lambda: thread.pending == 0)
    assert server.answered == [job.lock_id]


@pytest.mark.usefixtures("fast")
def test_an_undo_is_given_up_at_its_end_and_that_is_logged_without_details(thread, caplog):
    server = Server(is_up=False)
    job = job_for(server)
    job.until = 0
    with caplog.at_level(logging.WARNING, "syncguard"):
        thread.start()
        thread.enqueue(job, "lock")
        wait_until(lambda: "(ConnectionError)" in caplog.text)
    assert thread.pending == 0
    assert server.tries == 1
    assert job.lock_id not in caplog.text
    assert "must not be logged" not in caplog.text
    assert not spent_ids.of_lock("lock")


def test_jobs_of_one_server_share_a_connection(thread):
    server = Server()
    jobs = [thread.enqueue(job_for(server), "lock") for _ in range(10)]
    thread.start()
    wait_until(lambda: thread.pending == 0)
    assert server.tries == 1
    assert server.answered == [job.lock_id for job in jobs]


def test_a_lock_id_has_one_job(thread):
    job = job_for(Server())
    again = Undo(job.call, job.find_target, TTL_MS)
    assert thread.enqueue(job, "lock") is thread.enqueue(again, "") is job
    assert spent_ids.of_lock("lock") == f",{job.lock_id},"


def test_a_target_that_cannot_be_found_is_looked_for_again(thread, monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    server, found = Server(), []

    def find():
        found.append(None)
        if len(found) < 3:
            raise KeyError("the slot is not covered")
        return server

    thread.start()
    thread.enqueue(Undo(job_for(server).call, find, TTL_MS), "lock")
    wait_until(lambda: thread.pending == 0)
    assert len(server.answered) == 1


def test_at_most_a_thousand_wait_and_the_oldest_are_dropped(thread, caplog):
    server = Server(is_up=False)
    jobs = [thread.enqueue(job_for(server), "lock") for _ in range(MAX_PENDING + 2)]
    assert spent_ids.of_lock("lock").count(",") == MAX_PENDING + 3
    with caplog.at_level(logging.WARNING, "syncguard"):
        thread.start()
        wait_until(lambda: server.tries)
    assert thread.pending == MAX_PENDING
    assert "dropping the oldest" in caplog.text
    server.is_up = True
    wait_until(lambda: thread.pending == 0)
    assert server.answered == [job.lock_id for job in jobs[2:]]


def test_an_error_in_the_thread_does_not_end_it(thread, monkeypatch, caplog):
    monkeypatch.setattr(thread, "_drop_oldest", lambda: 1 / 0)
    server = Server()
    thread.start()
    thread.enqueue(job_for(server), "lock")
    wait_until(lambda: "Unexpected error in the undo thread" in caplog.text)
    monkeypatch.undo()
    wait_until(lambda: thread.pending == 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_replaced_before_the_next_acquire(syncguard_redis, monkeypatch):
    ended = []

    def end():
        ended.append(threading.current_thread())
        raise SystemExit

    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        backend.acquire("k")
        with monkeypatch.context() as patch:
            patch.setattr(undo_thread, "_try_due", end)
            undo_thread.ring()
            wait_until(lambda: not undo_thread.is_running)
        # pytest warns of its end, and must do so in this test.
        wait_until(lambda: not ended[0].is_alive())
        server = Server()
        undo_thread.enqueue(job_for(server), "lock")
        backend.acquire("other")
        wait_until(lambda: server.answered)


def test_without_a_free_thread_a_lock_is_still_acquired(syncguard_redis, monkeypatch):
    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        monkeypatch.setattr(undo_thread, "is_running", False)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        assert backend.acquire("k").ok
        wait_until(lambda: not undo_thread.is_running)


@pytest.mark.parametrize(("error", "is_raised"), [(RuntimeError, False), (KeyboardInterrupt, True)])
def test_if_the_start_fails_or_is_interrupted_the_next_acquire_starts_the_thread(
    thread, monkeypatch, error, is_raised
):
    def fail(*_arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", fail)
        with pytest.raises(error) if is_raised else contextlib.nullcontext():
            thread.start()
    assert not thread.is_running


def test_the_caller_of_an_acquire_does_not_start_the_thread_itself(syncguard_redis, monkeypatch):
    """It may hold the lock of another backend, whose loss interrupts it."""
    started_by, start = {}, threading.Thread.start

    def record(thread):
        started_by[thread.name] = threading.get_ident()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    monkeypatch.setattr(undo_thread, "is_running", False)
    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        assert backend.acquire("k").ok
        wait_until(lambda: "syncguard-undo" in started_by)
    assert threading.get_ident() not in started_by.values()


def the_thread_works():
    """Whether the process's undo thread, which another thread starts, has done a job."""
    server = Server()
    undo_thread.enqueue(job_for(server), "another lock")
    return lambda: server.answered


def test_no_thread_starts_after_a_time_out(syncguard_redis, monkeypatch):
    """An exception that is sent to a thread inside Thread.start may leave it waiting for ever."""
    with syncguard_redis.client(retry=None) as client, RedisBackend(client) as backend:
        backend.acquire("k").release()
        wait_until(the_thread_works())
        started = []
        monkeypatch.setattr(threading.Thread, "start", started.append)
        with (
            syncguard_redis.paused(),
            short_time_out(backend),
            pytest.raises(NetworkTimeout),
        ):
            backend.acquire("k", TTL_MS)
        wait_until(lambda: undo_thread.pending == 0)
        assert not started


class AsyncMock:
    """An asyncio runner that counts its calls."""

    def __init__(self, error=None):
        self.calls = 0
        self._error = error

    def run(self, _call):
        self.calls += 1
        return self._run()

    async def _run(self):
        if self._error is not None:
            raise self._error
        return True


def test_an_undo_for_a_loop_that_has_ended_makes_no_coroutine_that_nobody_awaits():
    runner, loop, answered = AsyncMock(), asyncio.new_event_loop(), []
    undo = UndoOnLoop(runner, loop)
    with pytest.raises(concurrent.futures.TimeoutError):
        undo.run([job_for(Server()).call], 0.01, answered.append)
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        undo.run([job_for(Server()).call], 20, answered.append)
    assert (runner.calls, answered) == (0, [])


@pytest.mark.parametrize("error", [None, ValueError, asyncio.CancelledError])
def test_an_undo_for_a_mock_runs_in_its_loop(error):
    """An interrupt of its task must not end the undo thread."""
    answered, call = [], job_for(Server()).call
    with LoopThread() as thread:
        undo = UndoOnLoop(AsyncMock(error and error()), thread._loop)
        if error is None:
            undo.run([call], 20, answered.append)
        else:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - of two kinds
                undo.run([call], 20, answered.append)
            assert isinstance(caught.value, (ValueError, concurrent.futures.CancelledError))
    assert answered == ([call.lock_id] if error is None else [])


# -- fork and exit ----------------------------------------------------------------------------


def test_a_forked_child_drops_the_jobs_of_its_parent(syncguard_redis):
    server = Server(is_up=False)
    undo_thread.start()
    undo_thread.enqueue(job_for(server), "lock")
    pid = os.fork()
    if pid == 0:
        try:
            in_order = undo_thread.pending == 0 and not spent_ids.of_lock("lock")
            with syncguard_redis.client() as client, RedisBackend(client) as backend:
                in_order = in_order and backend.acquire("k").ok and undo_thread.is_running
            os._exit(0 if in_order else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert undo_thread.pending == 1


TIMES_OUT_AND_WAITS = """
import asyncio, contextlib, sys
import redis, redis.asyncio
from syncguard import NetworkTimeout
from syncguard.redis import AsyncRedisBackend, RedisBackend, undo_thread
from redis.backoff import NoBackoff

undo_thread.FIRST_PAUSE_S = undo_thread.MAX_PAUSE_S = 300
settings = dict(host="localhost", port=int(sys.argv[1]), socket_timeout=0.2)

with redis.Redis(host="localhost", port=int(sys.argv[1])) as patient:
    RedisBackend(patient).acquire("warm up").release()

def blocking():
    backend = RedisBackend(redis.Redis(**settings, retry=redis.retry.Retry(NoBackoff(), 0)))
    is_open = False
    while not is_open:  # a busy machine may need more than the time-out
        with contextlib.suppress(NetworkTimeout):
            is_open = not backend.is_locked("k")
    print("ready", flush=True)
    sys.stdin.readline()
    backend.acquire("k", 600_000)

async def use_asyncio():
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    async with redis.asyncio.Redis(**settings, retry=retry) as client:
        backend = AsyncRedisBackend(client)
        is_open = False
        while not is_open:
            with contextlib.suppress(NetworkTimeout):
                is_open = not await backend.is_locked("k")
        print("ready", flush=True)
        sys.stdin.readline()
        await backend.acquire("k", 600_000)

try:
    asyncio.run(use_asyncio()) if sys.argv[2] == "asyncio" else blocking()
except NetworkTimeout:
    (job,) = undo_thread.undo_thread._jobs.values()
    job.tried.wait()
print("timed out", flush=True)
undo_thread.EXIT_TIMEOUT_S = float(sys.stdin.readline())
"""


@pytest.fixture(params=["blocking", "asyncio"])
def program(request, tmp_path):
    """A program whose acquire timed out: it tries the undo again after minutes, or at exit."""
    with RedisServer() as server:
        command = [sys.executable, "-c", TIMES_OUT_AND_WAITS, str(server.port), request.param]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        ) as process:
            assert process.stdout.readline() == "ready\n"
            server.pause()
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "timed out\n"
            yield process, server
            process.kill()


def test_at_exit_an_undo_is_tried_once_more(program):
    process, server = program
    server.resume()
    with server.client() as observer:
        wait_until(lambda: observer.exists("syncguard:k"))
        process.communicate("60\n", timeout=120)  # waits as long as a busy Redis takes
        assert process.returncode == 0
        assert not observer.exists("syncguard:k")


def test_at_exit_a_redis_that_hangs_is_not_waited_for(program):
    process, _server = program
    exit_timeout_s = module.EXIT_TIMEOUT_S
    process.communicate(f"{exit_timeout_s}\n", timeout=60)  # shorter than the pause of the undo
    assert process.returncode == 0
