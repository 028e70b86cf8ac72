"""Locks that are released after their block: extended until then, many in few round trips."""

from __future__ import annotations

import os
import time

import pytest
from redis.connection import Connection

from syncguard import Acquisition, LockError, LockLost, current_lock, lock, with_telemetry
from syncguard.deferred_release import release_later, release_together
from syncguard.redis import RedisBackend
from syncguard.redis._transport import pipeline
from syncguard.testing import RedisServer

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@pytest.fixture
def backend(syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url, key_prefix="late") as backend:
        yield backend


def taken(backend, key, **options):
    """A lock that is still held although its block has ended."""
    taking = lock(backend, key, **options)
    taking.__enter__()
    return release_later(taking)


def wait_until(is_true):
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_lock_stays_held_after_its_block_until_it_is_released(backend):
    late = taken(backend, "a")
    assert backend.is_locked("a")
    assert current_lock() is None
    assert release_together([late]) == []
    assert not backend.is_locked("a")


def test_the_lock_object_may_be_used_for_another_block_before_the_release(backend):
    taking = lock(backend, "a", acquisition=AT_ONCE)
    taking.__enter__()
    late = release_later(taking)
    with pytest.raises(LockError) as raised, taking:
        pass
    assert raised.value.code == "AcquisitionTimeout"
    release_together([late])
    with taking:
        pass


def test_a_lock_is_extended_until_its_late_release(backend):
    told = []
    late = taken(backend, "a", ttl_ms=12_000, on_lost=told.append)
    granted_until_ms = late.held.expires_at_ms
    wait_until(lambda: late.held.expires_at_ms > granted_until_ms)
    backend.release(late.held.lock_id)
    wait_until(lambda: told == [late.held])
    assert release_together([late]) == [late.held]


def test_a_lock_before_its_late_release_is_entered_again_with_the_same_fence(backend):
    late = taken(backend, "a")
    with late.enter_again() as held:
        assert current_lock() is held
        with pytest.raises(LockError, match="holds this lock already"), lock(backend, "a"):
            pass
        with lock(backend, "a", reentrant=True) as inner:
            assert inner.fence == held.fence
    assert current_lock() is None
    assert backend.is_locked("a")
    release_together([late])
    assert not backend.is_locked("a")


def test_a_block_that_entered_it_again_does_not_hold_it_after_its_late_release(backend):
    late = taken(backend, "a")
    with late.enter_again() as held:
        assert current_lock() is held
        release_together([late])
        assert current_lock() is None
        with lock(backend, "a") as afresh:
            assert afresh.fence > held.fence


def test_a_lost_lock_is_not_entered_again(backend):
    late = taken(backend, "a", ttl_ms=3_000)
    backend.release(late.held.lock_id)
    wait_until(lambda: late.held.lost)
    with pytest.raises(LockLost), late.enter_again():
        pass


def test_a_block_inside_of_another_one_releases_nothing_later(backend):
    with lock(backend, "a") as outer:
        inner = lock(backend, "a", reentrant=True)
        assert inner.__enter__() is outer
        assert release_later(inner) is None
        inner.__exit__(None, None, None)
        assert backend.is_locked("a")
    assert not backend.is_locked("a")


def test_a_forked_child_releases_nothing(backend):
    late = taken(backend, "a")
    pid = os.fork()
    if pid == 0:
        os._exit(len(release_together([late])))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert backend.is_locked("a")
    release_together([late])


def test_a_kept_lock_is_not_released_late(backend):
    kept, other, third = (taken(backend, key) for key in "abc")
    kept.held.keep(60_000)
    assert release_together([kept, other, third]) == []
    assert [backend.is_locked(key) for key in "abc"] == [True, False, False]


def test_neither_key_nor_lock_id_is_shown(backend):
    late = taken(backend, "secret-key")
    assert "secret-key" not in repr(late)
    assert late.held.lock_id not in repr(late)
    release_together([late])


def test_release_returns_the_lost_locks(backend):
    late = [taken(backend, key) for key in "abc"]
    backend.release(late[1].held.lock_id)
    assert release_together(late) == [late[1].held]
    assert backend.count_live_locks() == 0


# Many at once


@pytest.fixture
def sent(monkeypatch):
    """The requests to Redis, one entry per round trip."""
    sent = []
    send = Connection.send_packed_command

    def spy(self, command, *args, **kwargs):
        sent.append(command)
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(Connection, "send_packed_command", spy)
    return sent


def test_many_are_released_in_few_round_trips(backend, sent):
    late = [taken(backend, f"key-{number}") for number in range(600)]
    sent.clear()
    assert release_together(late) == []
    assert len(sent) <= 5
    assert backend.count_live_locks() == 0


def test_all_locks_are_released_after_a_script_flush(backend, syncguard_redis):
    late = [taken(backend, f"key-{number}") for number in range(5)]
    with syncguard_redis.client() as client:
        client.script_flush()
    assert release_together(late) == []
    assert backend.count_live_locks() == 0


def test_locks_of_several_backends_are_released_together(backend, syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url, key_prefix="other") as other:
        late = [taken(one, key) for key in "ab" for one in (backend, other)]
        assert release_together(late) == []
        assert backend.count_live_locks() == other.count_live_locks() == 0


def test_each_release_is_reported(backend):
    events = []
    reporting = with_telemetry(backend, events.append)
    late = [taken(reporting, key) for key in "abc"]
    backend.release(late[1].held.lock_id)
    events.clear()
    release_together(late)
    assert [(e.type, e.result) for e in events] == [
        ("release", "ok"),
        ("release", "fail"),
        ("release", "ok"),
    ]


def test_a_broken_connection_does_not_count_as_a_lost_lock(backend, monkeypatch):
    """Redis executes the requests, but the replies do not arrive."""
    late = [taken(backend, key) for key in "abcd"]
    read = Connection.read_response
    replies = []

    def break_once(self, *args, **kwargs):
        replies.append(read(self, *args, **kwargs))
        if len(replies) == 3:  # the second request of the pipeline
            raise ConnectionResetError
        return replies[-1]

    monkeypatch.setattr(Connection, "read_response", break_once)
    assert release_together(late) == []
    assert replies[:3] == [1, 1, 1]
    assert backend.count_live_locks() == 0


@pytest.fixture
def own_redis():
    """A Redis that a test may kill."""
    with RedisServer() as server:
        yield server


def test_an_unreachable_redis_fails_once_for_all_locks(own_redis, sent):
    errors, events = [], []

    def note(error, context):
        errors.append((error.code, context.key))

    with RedisBackend.from_url(own_redis.url, on_release_error=note) as backend:
        reporting = with_telemetry(backend, events.append)
        keys = [f"key-{number}" for number in range(600)]
        late = [taken(reporting, key) for key in keys]
        own_redis.kill()
        events.clear()
        sent.clear()
        assert release_together(late) == []
    assert errors == [("ServiceUnavailable", key) for key in keys]
    assert [(e.type, e.result) for e in events] == [("release", "fail")] * 600
    assert len(sent) <= 2


def before_the_pipeline(monkeypatch, act):
    """Call ``act`` after the first lock was released, and before the pipeline is sent."""
    exchange = pipeline._exchange

    def act_first(pool, calls):
        act()
        return exchange(pool, calls)

    monkeypatch.setattr(pipeline, "_exchange", act_first)


def test_a_script_that_is_flushed_in_between_is_sent_again(backend, syncguard_redis, monkeypatch):
    late = [taken(backend, key) for key in "abc"]
    with syncguard_redis.client() as client:
        before_the_pipeline(monkeypatch, client.script_flush)
        assert release_together(late) == []
    assert backend.count_live_locks() == 0


def test_a_redis_killed_in_between_fails_for_the_remaining_locks(own_redis, monkeypatch):
    errors = []

    def note(error, context):
        errors.append((error.code, context.key))

    with RedisBackend.from_url(own_redis.url, on_release_error=note) as backend:
        late = [taken(backend, key) for key in "abc"]
        before_the_pipeline(monkeypatch, own_redis.kill)
        assert release_together(late) == []
    assert errors == [("ServiceUnavailable", "b"), ("ServiceUnavailable", "c")]


def test_an_unreachable_mock_of_redis_fails_once_for_all_locks(caplog):
    fakeredis = pytest.importorskip("fakeredis")
    server = fakeredis.FakeServer()
    client = fakeredis.FakeRedis(server=server)
    backend = RedisBackend(client, key_prefix="late")
    late = [taken(backend, key) for key in "abc"]
    server.connected = False
    assert release_together(late) == []
    assert caplog.text.count("Could not release a lock") == 3
    client.close()


def test_an_interrupt_is_raised_and_all_locks_are_released(backend, monkeypatch):
    late = [taken(backend, key) for key in "abc"]
    release_many = RedisBackend.release_many
    interrupts = [KeyboardInterrupt()]

    def interrupted(self, lock_ids):
        if interrupts:
            raise interrupts.pop()
        return release_many(self, lock_ids)

    monkeypatch.setattr(RedisBackend, "release_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        release_together(late)
    assert backend.count_live_locks() == 0


class Plain:
    """A backend with the required parts only."""

    def __init__(self, inner):
        self._inner = inner
        self.calls = 0
        for name in ("acquire", "extend", "hash", "disposal", "capabilities"):
            setattr(self, name, getattr(inner, name))

    def acquire(self, *args, **kwargs): ...

    def release(self, lock_id, *, signal=None):
        self.calls += 1
        return self._inner.release(lock_id, signal=signal)


def test_a_backend_without_release_many_releases_one_by_one(backend):
    plain = Plain(backend)
    late = [taken(plain, key) for key in "abc"]
    assert release_together(late) == []
    assert plain.calls == 3
    assert backend.count_live_locks() == 0


def test_a_backend_without_release_many_fails_once_for_all_locks(own_redis, caplog):
    with RedisBackend.from_url(own_redis.url) as backend:
        plain = Plain(backend)
        late = [taken(plain, key) for key in "abc"]
        own_redis.kill()
        assert release_together(late) == []
    assert plain.calls == 1
    assert caplog.text.count("Could not release a lock") == 3


def test_a_mock_of_redis_releases_one_by_one():
    fakeredis = pytest.importorskip("fakeredis")
    client = fakeredis.FakeRedis()
    backend = RedisBackend(client, key_prefix="late")
    late = [taken(backend, key) for key in "abc"]
    assert release_together(late) == []
    assert backend.count_live_locks() == 0
    client.close()
