"""Which acquires and adopts are undone: what may have been granted, and what nobody then holds."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
import redis.asyncio
from late_reply import late_reply
from wait_until import wait_until

from syncguard import LockError, NetworkTimeout, generate_lock_id
from syncguard.redis import AsyncRedisBackend, RedisBackend, redis_backend_async
from syncguard.redis.replica_acknowledgement import TooFewReplicas
from syncguard.redis.undo_thread import undo_thread

TTL_MS = 600_000
"""Longer than any test: a lock that is free was released."""


# -- a grant that arrives too late ------------------------------------------------------------


def all_is_undone():
    return undo_thread.pending == 0


BEFORE_AND_AT_THE_END_OF_THE_TTL = [(TTL_MS - 1, True), (TTL_MS, False)]


@pytest.mark.parametrize(("after_ms", "is_granted"), BEFORE_AND_AT_THE_END_OF_THE_TTL)
def test_an_acquire_is_granted_only_if_it_is_answered_before_its_ttl_ends(
    backend, client, after_ms, is_granted
):
    with late_reply(after_ms):
        result = backend.acquire("k", TTL_MS)
    assert result.ok is is_granted
    assert is_granted or result.reason == "locked"
    wait_until(all_is_undone)
    assert client.get("syncguard:fence:syncguard:k") == "1", "it was granted"
    assert client.exists("syncguard:k") == is_granted


@pytest.mark.parametrize(("after_ms", "is_granted"), BEFORE_AND_AT_THE_END_OF_THE_TTL)
def test_an_adopt_is_granted_only_if_it_is_answered_before_its_ttl_ends(
    backend, client, after_ms, is_granted
):
    held = backend.acquire("k", TTL_MS)
    with late_reply(after_ms):
        result = backend.adopt(held.lock_id, TTL_MS)
    assert result.ok is is_granted
    assert is_granted or result.reason == "expired"
    wait_until(all_is_undone)
    assert client.exists("syncguard:k") == is_granted


# -- a request that ends with an error --------------------------------------------------------


class Runner:
    """Sends nothing. Each call ends with the error, before or after it may have been sent."""

    def __init__(self):
        self.error = NetworkTimeout("no reply")
        self.is_sent = True
        self.calls = []

    def run(self, call, _deadline=None):
        self.calls.append(call)
        call.may_be_sent = self.is_sent
        raise self.error


class AsyncRunner(Runner):
    outlives_caller = True

    async def run(self, call, deadline=None):
        super().run(call, deadline)


@pytest.fixture
def runner(is_async):
    return AsyncRunner() if is_async else Runner()


@pytest.fixture(params=[False, True], ids=["blocking", "asyncio"])
def is_async(request):
    return request.param


ONLY_BLOCKING = pytest.mark.parametrize("is_async", [False], ids=["blocking"], indirect=True)
ONLY_ASYNCIO = pytest.mark.parametrize("is_async", [True], ids=["asyncio"], indirect=True)

LOCK_ID = generate_lock_id()


@pytest.fixture(params=["acquire", "adopt"])
def operation(request, is_async, runner):
    """Acquires or adopts a lock."""
    client = redis.asyncio.Redis() if is_async else redis.Redis()
    backend = AsyncRedisBackend(client) if is_async else RedisBackend(client)
    backend._runner = runner

    def operate(signal=None):
        if request.param == "acquire":
            result = backend.acquire("k", TTL_MS, signal=signal)
        else:
            result = backend.adopt(LOCK_ID, TTL_MS, signal=signal)
        return asyncio.run(result) if is_async else result

    return operate


class Tried(threading.Event):
    """Records for how long it is waited for, and ends each wait at once."""

    def __init__(self):
        super().__init__()
        self.waited_s = []

    def wait(self, timeout=None):
        self.waited_s.append(timeout)
        return True


@pytest.fixture
def undos(monkeypatch):
    """The undos that were enqueued."""
    jobs = []

    def enqueue(job, _lock_name):
        job.tried = Tried()
        jobs.append(job)
        return job

    monkeypatch.setattr(undo_thread, "enqueue", enqueue)
    return jobs


@pytest.mark.parametrize(
    "error", [NetworkTimeout("no reply"), KeyboardInterrupt(), TooFewReplicas("too few")], ids=repr
)
def test_a_request_that_may_have_been_sent_is_undone(operation, runner, undos, error):
    runner.error = error
    with pytest.raises(type(error)):
        operation()
    (call,), (undo,) = runner.calls, undos
    assert undo.lock_id in call.args
    assert undo.lock_id != LOCK_ID, "the id that the lock had before the adopt stays valid"


def test_a_request_that_was_never_sent_is_not_undone(operation, runner, undos):
    runner.is_sent = False
    with pytest.raises(NetworkTimeout):
        operation()
    assert undos == []


@ONLY_ASYNCIO
def test_a_cancelled_request_is_undone_because_it_may_still_be_sent(operation, runner, undos):
    runner.is_sent = False
    runner.error = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        operation()
    assert len(undos) == 1


@ONLY_BLOCKING
@pytest.mark.parametrize(
    ("error", "waited_s"),
    [
        (NetworkTimeout("no reply"), []),
        (KeyboardInterrupt(), [0.2]),
        (TooFewReplicas("few"), [0.2]),
    ],
    ids=repr,
)
def test_the_first_try_is_waited_for_if_the_process_may_end_or_the_server_answers(
    operation, runner, undos, error, waited_s
):
    runner.error = error
    with pytest.raises(type(error)):
        operation()
    assert undos[0].tried.waited_s == waited_s


@pytest.fixture
def pauses(monkeypatch):
    """A clock that stands still, but for the pauses of tasks: each takes 100 ms."""
    taken = []

    async def pause(_seconds):
        taken.append(None)

    clock = SimpleNamespace(monotonic=lambda: len(taken) / 10)
    monkeypatch.setattr(redis_backend_async, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", pause)
    return taken


@ONLY_ASYNCIO
@pytest.mark.usefixtures("undos")
@pytest.mark.parametrize(
    ("error", "number"), [(NetworkTimeout("no reply"), 0), (TooFewReplicas("few"), 2)], ids=repr
)
def test_a_task_waits_200_ms_at_most_and_only_if_the_server_answers(
    operation, runner, pauses, error, number
):
    runner.error = error
    with pytest.raises(type(error)):
        operation()
    assert len(pauses) == number


@ONLY_ASYNCIO
@pytest.mark.usefixtures("undos")
def test_a_task_waits_no_longer_than_until_the_first_try(operation, runner, pauses, monkeypatch):
    monkeypatch.setattr(Tried, "is_set", lambda _self: len(pauses) >= 1)
    runner.error = TooFewReplicas("few")
    with pytest.raises(TooFewReplicas):
        operation()
    assert len(pauses) == 1


# -- undo() of a blocking backend -------------------------------------------------------------


@pytest.mark.parametrize(("key", "lock_name"), [("k", "syncguard:k"), (None, "")])
def test_undo_knows_the_lock_by_its_key_and_waits_for_the_first_try(monkeypatch, key, lock_name):
    enqueued, tried = [], Tried()

    def enqueue(job, lock_name):
        job.tried = tried
        enqueued.append((job.lock_id, lock_name))
        return job

    monkeypatch.setattr(undo_thread, "enqueue", enqueue)
    RedisBackend(redis.Redis()).undo(LOCK_ID, key=key, ttl_ms=TTL_MS)
    assert enqueued == [(LOCK_ID, lock_name)]
    assert tried.waited_s == [0.2]


# -- before the request -----------------------------------------------------------------------


@pytest.mark.usefixtures("undos")
@pytest.mark.parametrize("is_running", [True, False])
def test_the_undo_thread_is_started_before_the_request(operation, runner, monkeypatch, is_running):
    started = []
    monkeypatch.setattr(undo_thread, "is_running", is_running)
    monkeypatch.setattr(undo_thread, "start", lambda: started.append(len(runner.calls)))
    with pytest.raises(NetworkTimeout):
        operation()
    assert started == ([] if is_running else [0])


def test_a_set_signal_aborts_before_anything_is_sent(operation, runner, undos):
    signal = threading.Event()
    signal.set()
    with pytest.raises(LockError) as caught:
        operation(signal)
    assert caught.value.code == "Aborted"
    assert runner.calls == undos == []
