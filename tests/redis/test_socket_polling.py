"""After a quick reply the next request polls in a loop for its reply; otherwise it sleeps."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from syncguard import ReleaseResult
from syncguard.redis import RedisBackend
from syncguard.redis._transport import runner, socket_polling
from syncguard.redis._transport.connections import LARGE_POOL, Connection, Pool
from syncguard.redis._transport.socket_polling import (
    BUSY_FOR_S,
    CORE_TAKEN_S,
    MAX_SPIN_S,
    Poll,
    ReplySpin,
    poll_of,
)
from syncguard.testing import RedisServer


class Clock:
    """A clock that moves only when the test polls or reads."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(socket_polling, "time", clock)
    return clock


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class FakeConnection:
    """A connection whose reply arrives after so many polls, or after a sleep."""

    def __init__(self, clock: Clock, *, after_polls: int, sleep_s: float) -> None:
        self._clock = clock
        self._after = after_polls
        self._sleep_s = sleep_s
        self.polls = 0

    def poll(self, timeout: int) -> list[object]:
        assert timeout == 0
        self.polls += 1
        self._clock.now += MAX_SPIN_S / 10
        return ["data"] if self.polls > self._after else []

    def read(self) -> None:
        self._clock.now += self._sleep_s


def quick(clock: Clock) -> FakeConnection:
    return FakeConnection(clock, after_polls=3, sleep_s=MAX_SPIN_S / 100)


def slow(clock: Clock) -> FakeConnection:
    return FakeConnection(clock, after_polls=1000, sleep_s=MAX_SPIN_S * 4)


def polls_of(replies: ReplySpin, connection: FakeConnection) -> int:
    """Send one request and read its reply. Returns the number of polls before the read."""
    sent_at = replies.spin(connection.poll)
    connection.read()
    replies.record_reply(sent_at)
    return connection.polls


def test_the_first_request_does_not_spin(clock: Clock) -> None:
    assert polls_of(ReplySpin(), quick(clock)) == 0


def test_after_a_quick_reply_the_next_request_spins_until_its_reply(clock: Clock) -> None:
    replies = ReplySpin()
    polls_of(replies, quick(clock))
    assert polls_of(replies, quick(clock)) == 4


def test_spinning_ends_after_its_maximum_time(clock: Clock) -> None:
    replies = ReplySpin()
    polls_of(replies, quick(clock))
    assert 5 < polls_of(replies, slow(clock)) < 15
    assert polls_of(replies, slow(clock)) == 0, "one slow reply is enough to sleep at once"


def test_spinning_starts_again_after_a_quick_reply(clock: Clock) -> None:
    replies = ReplySpin()
    polls_of(replies, slow(clock))
    assert polls_of(replies, quick(clock)) == 0
    assert polls_of(replies, quick(clock)) > 0


def test_no_request_spins_for_a_while_after_another_process_used_the_core(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def yield_to_another_process() -> None:
        clock.now += CORE_TAKEN_S

    monkeypatch.setattr(socket_polling, "_yield_cpu", yield_to_another_process)
    replies = ReplySpin()
    clock.now = 100.0
    polls_of(replies, quick(clock))
    assert polls_of(replies, quick(clock)) > 0
    lost_at = clock.now
    for _ in range(10):
        assert polls_of(replies, quick(clock)) == 0
    clock.now = lost_at + BUSY_FOR_S
    assert polls_of(replies, quick(clock)) > 0


def test_no_request_spins_without_sched_yield(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_polling, "_yield_cpu", None)
    replies = ReplySpin()
    polls_of(replies, quick(clock))
    assert polls_of(replies, quick(clock)) == 0


def test_no_request_spins_under_gevent() -> None:
    program = """
from gevent import monkey
monkey.patch_all()
from syncguard.redis._transport.socket_polling import ReplySpin
replies, polls = ReplySpin(), []
for _ in range(3):
    replies.record_reply(replies.spin(polls.append))
assert replies._last_reply_was_quick and not polls
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("has_poll", [True, False], ids=["poll", "select"])
def test_poll_detects_data_and_a_closed_connection(
    pair: tuple[socket.socket, socket.socket], has_poll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_poll:  # as on Windows
        monkeypatch.delattr(select, "poll")
    ours, theirs = pair
    poll = poll_of(ours)
    assert not poll(0)
    theirs.send(b"+OK\r\n")
    assert poll(0)
    ours.recv(64)
    assert not poll(0)
    theirs.close()
    assert poll(0), "a closed connection is readable"


def test_a_kept_connection_that_was_closed_is_replaced(syncguard_redis: RedisServer) -> None:
    client = syncguard_redis.client()
    with client, RedisBackend(client) as backend:
        held = backend.acquire("k")
        assert held.ok
        client.connection_pool.disconnect()
        assert backend.release(held.lock_id) == ReleaseResult(True)


def test_kept_connections_that_were_closed_do_not_exhaust_the_pool(
    syncguard_redis: RedisServer,
) -> None:
    client = syncguard_redis.client(max_connections=LARGE_POOL)
    with client, RedisBackend(client) as backend:
        for _ in range(20):
            assert backend.is_locked("k") is False
            client.connection_pool.disconnect()


def test_a_connection_kept_unused_for_long_is_returned_to_the_pool(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    original = runner.take

    def take(pool: Pool) -> Connection:
        taken.append("from the pool")
        return original(pool)

    monkeypatch.setattr(runner, "take", take)
    monkeypatch.setattr(runner, "FRESH_FOR_S", 60.0)
    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        backend.is_locked("k")
        backend.is_locked("k")
        assert len(taken) == 1
        monkeypatch.setattr(runner, "FRESH_FOR_S", 0.0)
        backend.is_locked("k")
        assert len(taken) == 2


def test_only_the_thread_with_the_kept_connection_spins(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spinning: list[str] = []
    together = threading.Barrier(2)
    original = ReplySpin.spin

    def spin(self: ReplySpin, poll: Poll) -> float:
        spinning.append(threading.current_thread().name)
        if len(spinning) == 1:
            together.wait(60)  # the kept connection is in use; let the other one call
            together.wait(60)
        return original(self, poll)

    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        backend.is_locked("k")
        monkeypatch.setattr(ReplySpin, "spin", spin)
        first = threading.Thread(target=backend.is_locked, args=("k",), name="first")
        first.start()
        together.wait(60)
        assert backend.is_locked("k") is False
        together.wait(60)
        first.join(60)
    assert spinning == ["first"]
