"""An acquire or adopt that got no reply leaves no lock behind: it is undone in the background."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest
import redis.asyncio
from call_later import call_later
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from short_time_out import short_time_out
from undos_held_back import undos_held_back
from wait_until import wait_until

from syncguard import (
    Acquisition,
    AuthFailed,
    LockError,
    NetworkTimeout,
    generate_lock_id,
    lock,
    with_telemetry,
)
from syncguard.backend import undo
from syncguard.clock import redis_server_time_ms
from syncguard.redis import AsyncRedisBackend, RedisBackend, script_calls, spent_ids
from syncguard.redis._transport.connections import take
from syncguard.redis.script_calls import Calls
from syncguard.redis.undo_thread import Undo, UndoThread, undo_thread
from syncguard.testing import RedisServer

TTL_MS = 600_000
"""Longer than any test: a lock that is free was released."""

ROUNDS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "5"))


@pytest.fixture
def server():
    """A Redis for this test only: requests of another test must not arrive late."""
    with RedisServer() as own:
        yield own


@pytest.fixture
def observer(server):
    with server.client(decode_responses=True) as client:
        yield client


def executed(server):
    """How many of our calls the server has executed. An undo is not one of them."""
    return server.commands_processed().get("evalsha", 0)


def times_out(server, backend, operation):
    """Run the operation while Redis hangs; return when Redis has executed it after the hang."""
    backend.is_locked("the connection is open before the hang")
    before = executed(server)
    with server.paused(), short_time_out(backend), pytest.raises(NetworkTimeout):
        operation()
    wait_until(lambda: executed(server) > before)


def is_undone():
    return undo_thread.pending == 0


def test_an_acquire_that_timed_out_leaves_no_lock(backend_on, server, observer):
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    for n in range(ROUNDS):
        times_out(server, backend, lambda n=n: backend.acquire(f"k{n}", TTL_MS))
        wait_until(is_undone)
        assert observer.exists(f"syncguard:k{n}") == 0, f"round {n}"
    assert backend.count_live_locks() == 0


def test_lock_leaves_no_lock_when_its_attempt_timed_out(backend_on, server, observer):
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    times_out(server, backend, lambda: lock(backend, "k", TTL_MS).__enter__())
    wait_until(is_undone)
    assert observer.exists("syncguard:k") == 0


def test_an_acquire_whose_reply_was_lost_leaves_no_lock(backend_on, lossy_relay, client):
    # So few connections that none is kept: a kept one would be tried again.
    backend = backend_on(lossy_relay, client={"max_connections": 4})
    backend.acquire("warm up", TTL_MS).release()
    lossy_relay.lose_next_reply()
    with pytest.raises(LockError):
        backend.acquire("k", TTL_MS)
    assert lossy_relay.lost.is_set()
    wait_until(is_undone)
    assert client.exists("syncguard:k") == 0
    assert client.get("syncguard:fence:syncguard:k") == "1", "it was granted"


def test_an_acquire_that_lacks_a_right_inside_its_script_leaves_no_lock(
    backend_on, server, observer
):
    """The script writes the lock before it runs the command that is refused."""
    rules = "on >pw ~* +@read +@write +@scripting +@connection +time -zadd"
    observer.execute_command("ACL", "SETUSER", "shop", "reset", *rules.split())
    backend = backend_on(server, client={"username": "shop", "password": "pw"})
    with pytest.raises(AuthFailed):
        backend.acquire("k", TTL_MS)
    wait_until(is_undone)
    assert observer.exists("syncguard:k") == 0
    assert observer.get("syncguard:fence:syncguard:k") == "1", "the script began to write"


def test_a_failed_connection_needs_no_undo(backend_on, server):
    """Nothing was sent. Else each attempt during an outage would be a job."""
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    server.kill()
    with pytest.raises(LockError):  # on the kept connection
        backend.is_locked("k")
    with pytest.raises(LockError):
        backend.acquire("k", TTL_MS)
    with pytest.raises(LockError):
        lock(backend, "k", TTL_MS).__enter__()
    assert undo_thread.pending == 0


# -- the tombstone ----------------------------------------------------------------------------


@pytest.fixture
def run(server):
    """Runs a call; returns the reply of the server."""
    with server.client() as client:

        def run(call):
            return client.eval(call.script.text, len(call.keys), *call.keys, *call.args)

        yield run


CALLS = Calls()


def test_an_acquire_that_arrives_after_its_undo_is_refused(run, observer):
    late = CALLS.acquire("k", TTL_MS, None)
    assert run(CALLS.undo(late.lock_id)) == 0
    assert run(late) == 0
    assert observer.exists("syncguard:k") == 0


def test_a_tombstone_stays_for_a_minute(run, observer):
    lock_id = generate_lock_id()
    before = server_time_ms(observer)
    run(CALLS.undo(lock_id))
    left_ms = observer.pttl(f"syncguard:id:{lock_id}")
    passed_ms = server_time_ms(observer) - before
    assert 60_000 - passed_ms <= left_ms <= 60_000


def server_time_ms(client):
    return redis_server_time_ms(client.time())


def test_a_waiters_acquire_that_arrives_after_its_undo_is_refused(run, observer):
    late = CALLS.acquire("k", TTL_MS, None, wait_ms=1_000)
    run(CALLS.undo(late.lock_id))
    assert not late.read(run(late)).remaining_ms
    assert observer.exists("syncguard:k") == 0


def test_an_adopt_that_arrives_after_its_undo_is_refused(run):
    lock_id = CALLS.acquire("k", TTL_MS, None)
    run(lock_id)
    late = CALLS.adopt(lock_id.lock_id, TTL_MS, None)
    run(CALLS.undo(late.args[1]))
    assert run(late) == -1
    extend = CALLS.extend(lock_id.lock_id, TTL_MS)
    assert extend.read(run(extend)).ok, "the lock stays with its old id"


def test_the_undo_of_an_executed_acquire_releases_the_lock(run, observer):
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    assert run(CALLS.undo(acquire.lock_id)) == 1
    assert observer.exists("syncguard:k") == 0
    assert observer.zcard("syncguard:id::live") == 0
    assert run(acquire) == 0, "the same request again, from another connection"


def test_the_undo_of_an_executed_adopt_releases_the_lock(run, observer):
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    adopt = CALLS.adopt(acquire.lock_id, TTL_MS, None)
    run(adopt)
    assert run(CALLS.undo(adopt.args[1])) == 1
    assert observer.exists("syncguard:k") == 0
    assert run(adopt) == -1, "the same request again, from another connection"


def test_an_undo_does_not_release_a_lock_that_was_acquired_again_under_another_id(run, observer):
    """The new acquire replaces the lock of the spent id, but not the index of that id."""
    spent = CALLS.acquire("k", TTL_MS, None)
    run(spent)
    spent_ids.add(spent.lock_id, "syncguard:k")
    again = CALLS.acquire("k", TTL_MS, None)
    spent_ids.discard(spent.lock_id)
    run(again)
    stored = observer.get("syncguard:k")
    assert json.loads(stored)["lockId"] == again.lock_id
    assert observer.get(f"syncguard:id:{spent.lock_id}") == "syncguard:k", "the old index is there"
    assert run(CALLS.undo(spent.lock_id)) == 0
    assert observer.get("syncguard:k") == stored
    assert observer.zrange("syncguard:id::live", 0, -1) == ["syncguard:k"]
    assert run(CALLS.release(again.lock_id)) == 1


def test_every_other_script_sees_a_tombstone_as_a_lock_that_is_gone(run, observer):
    lock_id = CALLS.acquire("k", TTL_MS, None).lock_id
    run(CALLS.undo(lock_id))
    assert run(CALLS.extend(lock_id, TTL_MS)) == [-1]
    assert run(CALLS.adopt(lock_id, TTL_MS, None)) == -1
    assert run(CALLS.lookup(None, lock_id)) is None
    assert run(CALLS.release(lock_id)) == -1
    assert observer.exists(f"syncguard:id:{lock_id}") == 1, "and none of them deletes it"


WAKE = "syncguard:id::wake:syncguard:k"


@pytest.fixture
def undo_and_read(observer):
    """Undoes; returns the wake-ups and their TTL, before any of them can expire."""

    def undo_and_read(lock_id):
        call = CALLS.undo(lock_id)
        with observer.pipeline(transaction=True) as pipeline:
            pipeline.eval(call.script.text, len(call.keys), *call.keys, *call.args)
            pipeline.lrange(WAKE, 0, -1)
            pipeline.pttl(WAKE)
            return pipeline.execute()[1:]

    return undo_and_read


def test_an_undo_leaves_a_wake_up_for_a_waiter(run, undo_and_read):
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    run(CALLS.acquire("k", TTL_MS, None, wait_ms=60_000))
    wake_ups, ttl_ms = undo_and_read(acquire.lock_id)
    assert wake_ups == ["1"]
    assert 0 < ttl_ms <= int(script_calls._WAKE_TTL)


def test_an_undo_leaves_no_second_wake_up(run, observer, undo_and_read):
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    run(CALLS.acquire("k", TTL_MS, None, wait_ms=60_000))
    observer.rpush(WAKE, "first")
    assert undo_and_read(acquire.lock_id) == [["first"], -1]


def test_an_undo_leaves_no_wake_up_if_nobody_waits(run, undo_and_read):
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    assert undo_and_read(acquire.lock_id) == [[], -2]


def test_an_undo_wakes_a_waiter(backend_on, server, run):
    backend = backend_on(server)
    acquire = CALLS.acquire("k", TTL_MS, None)
    run(acquire)
    only_woken = Acquisition(timeout_ms=60_000, retry_delay_ms=100_000, jitter="none")
    with (
        call_later(0.2, lambda: run(CALLS.undo(acquire.lock_id))),
        lock(backend, "k", TTL_MS, acquisition=only_woken) as held,
    ):
        assert held.fence == "000000000000002"


# -- a caller that comes back -----------------------------------------------------------------


@pytest.fixture
def no_undo():
    """What a caller that comes back gets must not depend on undos."""
    with undos_held_back():
        yield


@pytest.mark.usefixtures("no_undo")
def test_a_caller_that_comes_back_replaces_its_own_lock(backend_on, server, observer):
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    times_out(server, backend, lambda: backend.acquire("k", TTL_MS))
    assert observer.exists("syncguard:k") == 1
    again = backend.acquire("k", TTL_MS)
    assert again.ok
    assert again.fence == "000000000000002"
    assert again.release().ok
    assert observer.zcard("syncguard:id::live") == 0


@pytest.mark.usefixtures("no_undo")
def test_lock_that_comes_back_replaces_its_own_lock(backend_on, server, observer):
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    times_out(server, backend, lambda: lock(backend, "k", TTL_MS).__enter__())
    assert observer.exists("syncguard:k") == 1
    with lock(backend, "k", TTL_MS) as held:
        assert held.fence == "000000000000002"


@pytest.mark.usefixtures("no_undo")
def test_a_caller_that_comes_back_does_not_replace_the_lock_of_another(backend_on, server):
    backend = backend_on(server)
    assert backend.acquire("k", TTL_MS).ok
    times_out(server, backend, lambda: backend.acquire("k", TTL_MS))
    times_out(server, backend, lambda: backend.acquire("other", TTL_MS))
    assert not backend.acquire("k", TTL_MS).ok


@pytest.fixture
def undo_may_run():
    """Undos are tried once this event is set."""
    with undos_held_back() as may_run:
        yield may_run


def test_the_undo_of_a_replaced_lock_does_not_release_the_new_one(
    backend_on, server, observer, undo_may_run
):
    backend = backend_on(server)
    backend.acquire("warm up", TTL_MS).release()
    times_out(server, backend, lambda: backend.acquire("k", TTL_MS))
    again = backend.acquire("k", TTL_MS)
    assert again.ok
    assert undo_thread.pending == 1, "the undo comes after the second acquire"
    undo_may_run.set()
    wait_until(is_undone)
    assert observer.exists("syncguard:k") == 1
    assert again.release().ok


# -- the connection of an undo ----------------------------------------------------------------


def test_an_undo_uses_a_connection_that_was_opened_after_the_time_out(server, undo_may_run):
    """Redis may read a connection that was open before it hung earlier than that of the acquire."""
    retry = Retry(NoBackoff(), 0)
    with (
        server.client() as observer,
        redis.Redis(port=server.port, retry=retry) as client,
        RedisBackend(client) as backend,
    ):
        pool = client.connection_pool
        idle = [take(pool) for _ in range(3)]
        for connection in idle:
            pool.release(connection)
        times_out(server, backend, lambda: backend.acquire("k", TTL_MS))
        opened_before = {each["addr"] for each in observer.client_list()}
        assert len(opened_before) >= len(idle)
        with observer.monitor() as monitor:
            undo_may_run.set()
            sender = next(each for each in monitor.listen() if ":undone" in each["command"])
        assert f"{sender['client_address']}:{sender['client_port']}" not in opened_before


# -- at exit ----------------------------------------------------------------------------------


class RefusingServer:
    """A target that answers no undo, and records the time-outs of the tries."""

    def __init__(self):
        self.timeouts_s = []

    def run(self, _calls, timeout_s, _answered):
        self.timeouts_s.append(timeout_s)
        raise ConnectionError


class RecordedWait(threading.Event):
    def wait(self, timeout=None):
        self.timeout_s = timeout
        return super().wait(20)


def test_at_exit_a_try_may_take_200_ms_and_no_more_is_waited_for():
    thread, server = UndoThread(), RefusingServer()
    thread._tried_at_exit = exit_wait = RecordedWait()
    thread.start()
    job = thread.enqueue(Undo(CALLS.undo(generate_lock_id()), lambda: server, TTL_MS), "lock")
    assert job.tried.wait(20)
    assert server.timeouts_s[0] == 1
    thread.try_once_at_exit()
    assert server.timeouts_s[-1] == exit_wait.timeout_s == 0.2
    thread.drop_jobs()


# -- adopt ------------------------------------------------------------------------------------


def test_an_adopt_that_timed_out_leaves_no_lock(backend_on, server):
    backend = backend_on(server)
    first = backend.acquire("k", TTL_MS)
    second = backend.adopt(first.lock_id, TTL_MS)  # loads the script
    times_out(server, backend, lambda: backend.adopt(second.lock_id, TTL_MS))
    wait_until(is_undone)
    # Redis executed the adopt before its undo, or refused it after. Then the old id is valid.
    holders = [info.lock_id for info in backend.page_raw().locks]
    assert holders in ([], [second.lock_id])


# -- undo() of a backend ----------------------------------------------------------------------


def test_undo_releases_a_lock_that_nobody_holds(server, observer):
    with server.client() as client, RedisBackend(client) as backend:
        held, reported = (backend.acquire(key, TTL_MS) for key in ("held", "reported"))
        undo(backend, held.lock_id, key="held", ttl_ms=TTL_MS)
        undo(with_telemetry(backend, print), reported.lock_id)
        wait_until(is_undone)
    assert observer.keys("syncguard:held") == observer.keys("syncguard:reported") == []


def test_undo_of_a_backend_without_it_releases_once(server):
    class Plain:
        def __init__(self, backend):
            self.release = backend.release

    with server.client() as client, RedisBackend(client) as backend:
        held = backend.acquire("k", TTL_MS)
        undo(Plain(backend), held.lock_id)
        assert not backend.is_locked("k")
        server.kill()
        undo(Plain(backend), held.lock_id)  # raises nothing


# -- asyncio ----------------------------------------------------------------------------------


def test_closing_the_callers_loop_does_not_stop_the_undo(server, observer):
    async def main() -> None:
        retry = AsyncRetry(NoBackoff(), 0)
        client = redis.asyncio.Redis(host="localhost", port=server.port, retry=retry)
        async with client, AsyncRedisBackend(client) as backend:
            result = await backend.acquire("warm up", TTL_MS)
            assert result.ok
            await result.release()
            server.pause()
            with short_time_out(backend):
                await backend.acquire("k", TTL_MS)

    before = executed(server)
    with pytest.raises(NetworkTimeout):
        asyncio.run(main())
    assert undo_thread.pending == 1
    server.resume()
    wait_until(lambda: executed(server) > before + 2)
    wait_until(is_undone)
    assert observer.exists("syncguard:k") == 0
