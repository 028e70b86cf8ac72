"""One connection for all waiters of a process: all of them are woken, whoever leaves meanwhile."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType

import pytest
from clients import backend_on
from wait_until import TTL_MS, wait_until

from syncguard import Acquired, Acquisition, LockError, lock
from syncguard.redis import RedisBackend
from syncguard.redis.wake_listener import WakeListener
from syncguard.testing import RedisServer

FAR = Acquisition(timeout_ms=100_000, retry_delay_ms=90_000, jitter="none")
"""A waiter that would sleep for 90 s: if it ends sooner, it was woken."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def backend(server: RedisServer) -> Iterator[RedisBackend]:
    # Without a socket time-out one BLPOP lasts 30 s: longer than a test waits for a wake-up.
    with backend_on(server.port, socket_timeout=None) as backend:
        yield backend


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=64) as threads:
        yield threads


def held(backend: RedisBackend, key: str) -> Acquired:
    acquired = backend.acquire(key, ttl_ms=100_000)
    assert acquired.ok
    return acquired


def blpops(server: RedisServer) -> list[dict[str, str]]:
    """The connections that are blocked in a BLPOP."""
    with server.client() as observer:
        return [each for each in observer.client_list() if "b" in each["flags"]]


def take(backend: RedisBackend, key: str, stop: threading.Event | None = None) -> str:
    with lock(backend, key, ttl_ms=100_000, acquisition=FAR, signal=stop) as acquired:
        return acquired.fence


def listener_of(backend: RedisBackend) -> WakeListener:
    listener = backend._listener_of(backend._calls.names.of("k"))
    assert isinstance(listener, WakeListener)
    return listener


def local_waiters(backend: RedisBackend) -> int:
    return len(listener_of(backend)._waiters)


class Waiting:
    """Starts waiters one after the other, each when the one before listens."""

    def __init__(self, server: RedisServer, threads: ThreadPoolExecutor) -> None:
        self._server = server
        self._threads = threads

    def start(
        self, backend: RedisBackend, key: str, stop: threading.Event | None = None
    ) -> Future[str]:
        before = local_waiters(backend)
        future = self._threads.submit(take, backend, key, stop)
        wait_until(lambda: local_waiters(backend) > before and blpops(self._server))
        return future


@pytest.fixture
def waiting(server: RedisServer, threads: ThreadPoolExecutor) -> Waiting:
    return Waiting(server, threads)


def test_forty_threads_that_wait_for_ten_locks_use_one_connection_and_all_are_woken(
    backend: RedisBackend, server: RedisServer, waiting: Waiting
) -> None:
    holders = [held(backend, f"k{n}") for n in range(10)]
    waiters = [waiting.start(backend, f"k{n % 10}") for n in range(40)]
    wait_until(lambda: len(blpops(server)) == 1)
    for holder in holders:
        holder.release()
    fences = [waiter.result(timeout=25) for waiter in waiters]
    assert sorted(fences) == sorted(f"{n:015}" for n in (2, 3, 4, 5) for _ in range(10))
    wait_until(lambda: not blpops(server))


def test_a_waiter_for_another_lock_joins_the_pending_blpop(
    backend: RedisBackend, waiting: Waiting
) -> None:
    """Redis cannot add a list to a BLPOP: without the bell, the second waiter would be missed."""
    first, second = held(backend, "k"), held(backend, "second")
    waiter = waiting.start(backend, "k")
    other = waiting.start(backend, "second")
    second.release()
    assert other.result(timeout=25)
    assert not waiter.done()
    first.release()
    assert waiter.result(timeout=25)


def test_if_the_first_waiter_leaves_the_others_are_woken(
    backend: RedisBackend, server: RedisServer, waiting: Waiting
) -> None:
    """The first waiter reads the connection for all; another one continues."""
    holder, stop = held(backend, "k"), threading.Event()
    first = waiting.start(backend, "k", stop)
    second = waiting.start(backend, "k")
    (connection,) = (each["id"] for each in blpops(server))
    stop.set()
    with pytest.raises(LockError, match="aborted"):
        first.result(timeout=25)
    holder.release()
    assert second.result(timeout=25)
    with server.client() as observer:
        assert connection in [each["id"] for each in observer.client_list()]


class TimeLimit(Exception):
    """Raised by a signal handler, as a task queue does."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeLimit, TimeoutError])
def test_if_the_first_waiter_is_interrupted_the_others_are_woken(
    backend: RedisBackend,
    waiting: Waiting,
    threads: ThreadPoolExecutor,
    interrupt: type[BaseException],
) -> None:
    def raise_interrupt(_number: int, _frame: FrameType | None) -> None:
        raise interrupt

    holder = held(backend, "k")
    followers: list[Future[str]] = []

    def start_a_follower_and_interrupt_the_first() -> None:
        wait_until(lambda: local_waiters(backend) == 1)
        followers.append(waiting.start(backend, "k"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        starting = threads.submit(start_a_follower_and_interrupt_the_first)
        with pytest.raises(interrupt):
            take(backend, "k")
        starting.result(timeout=25)
    finally:
        signal.signal(signal.SIGALRM, before)
    holder.release()
    assert followers[0].result(timeout=25)


def test_an_interrupt_while_the_reply_is_read_does_not_lose_the_wake_up(
    backend: RedisBackend, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake-up has left its list, and the waiter that read it knows nothing of it."""
    holder = held(backend, "k")
    first, second = waiting.start(backend, "k"), waiting.start(backend, "k")
    read = WakeListener._read

    def interrupted(_self: WakeListener, connection: object) -> None:
        monkeypatch.setattr(WakeListener, "_read", read)
        assert connection.read_response()  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(WakeListener, "_read", interrupted)
    holder.release()
    with pytest.raises(KeyboardInterrupt):
        first.result(timeout=25)
    assert second.result(timeout=25)


def test_a_wake_up_for_a_waiter_that_left_is_passed_on_to_another_process(
    backend: RedisBackend, server: RedisServer, waiting: Waiting
) -> None:
    """Another client in this test has its own connection, as another process does."""
    holder, other, stop = held(backend, "k"), held(backend, "other"), threading.Event()
    leaves = waiting.start(backend, "k", stop)
    stays = waiting.start(backend, "other")
    wait_until(lambda: "wake:syncguard:k" in pending_lists(backend))
    wait_until(lambda: "wake:syncguard:other" in pending_lists(backend))
    with backend_on(server.port, socket_timeout=None) as elsewhere:
        there = waiting.start(elsewhere, "k")
        wait_until(lambda: len(blpops(server)) == 2)
        stop.set()
        with pytest.raises(LockError, match="aborted"):
            leaves.result(timeout=25)
        holder.release()  # Redis gives it to the connection that has waited longest
        assert there.result(timeout=25)
    other.release()
    assert stays.result(timeout=25)


def is_polling(backend: RedisBackend) -> bool:
    """Whether the first waiter waits for the reply of its BLPOP."""
    listener = listener_of(backend)
    return bool(listener._pending) and not listener._is_in_use


def pending_lists(backend: RedisBackend) -> str:
    listener = listener_of(backend)
    return " ".join(listener._pending)


def test_after_the_connection_was_killed_the_waiters_listen_on_another(
    backend: RedisBackend, server: RedisServer, waiting: Waiting
) -> None:
    holder = held(backend, "k")
    waiters = [waiting.start(backend, "k") for _ in range(3)]
    (killed,) = blpops(server)
    with server.client() as observer:
        observer.client_kill_filter(_id=killed["id"])
    wait_until(lambda: [each["id"] for each in blpops(server)] not in ([], [killed["id"]]))
    holder.release()
    assert len({waiter.result(timeout=25) for waiter in waiters}) == 3


def test_a_wake_up_that_was_lost_with_the_connection_is_passed_on(
    backend: RedisBackend, server: RedisServer, waiting: Waiting
) -> None:
    holder = held(backend, "k")
    waiter = waiting.start(backend, "k")
    (killed,) = blpops(server)
    with server.client() as observer:
        # In one step, so that the reply is never read: released, popped, and the reply discarded.
        with observer.pipeline(transaction=True) as steps:
            steps.client_kill_filter(_id=killed["id"])
            steps.delete("syncguard:k")  # as if the wake-up had gone into the dead connection
            steps.execute()
    assert waiter.result(timeout=25) > holder.fence


def test_a_connection_that_is_never_answered_is_replaced(
    backend: RedisBackend, waiting: Waiting, server: RedisServer
) -> None:
    """A router between us and Redis may forget a connection without a word."""
    holder, stop = held(backend, "k"), threading.Event()
    waiter = waiting.start(backend, "k", stop)
    (silent,) = blpops(server)
    listener_of(backend)._overdue_at = 0.0  # the reply should have come long ago
    wait_until(lambda: [each for each in blpops(server) if each["id"] != silent["id"]])
    wait_until(lambda: len(blpops(server)) == 1)
    holder.release()
    assert waiter.result(timeout=25)


def test_a_signal_handler_may_wait_for_the_lock_that_its_thread_waits_for(
    backend: RedisBackend, threads: ThreadPoolExecutor
) -> None:
    holder, fences, calls = held(backend, "k"), [], itertools.count()
    runs = threading.Event()

    def take_too(_number: int, _frame: FrameType | None) -> None:
        if next(calls) == 0:
            runs.set()
            fences.append(take(backend, "k"))

    def interrupt() -> bool:
        """Python notices a signal that comes right before the poll only after the poll."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        return runs.wait(0.05)

    def interrupt_and_release() -> None:
        wait_until(lambda: is_polling(backend))
        wait_until(interrupt)
        wait_until(lambda: local_waiters(backend) == 2)
        holder.release()

    before, begun_at = signal.signal(signal.SIGALRM, take_too), time.monotonic()
    try:
        interrupting = threads.submit(interrupt_and_release)
        fences.append(take(backend, "k"))
        interrupting.result(timeout=25)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert fences == ["000000000000002", "000000000000003"]
    assert time.monotonic() - begun_at < 60, "not woken: waited until the delay of 90 s was over"


def test_with_few_connections_left_the_heartbeat_of_a_holder_still_connects(
    backend: RedisBackend, server: RedisServer
) -> None:
    """Of 150 waiters each had a connection; then the server had none left for the heartbeat."""
    with server.client() as observer, ExitStack() as stack:
        observer.config_set("maxclients", 60)
        stop = threading.Event()
        crowd = stack.enter_context(ThreadPoolExecutor(max_workers=150))
        holder = held(backend, "k")
        waiting = Waiting(server, crowd)
        waiters = [waiting.start(backend, "k", stop) for _ in range(150)]
        with lock(backend, "mine", ttl_ms=TTL_MS, auto_extend=True) as mine:
            first = mine.expires_at_ms
            wait_until(lambda: mine.expires_at_ms > first)
            assert not mine.lost
        # For calls, for waiting, for heartbeats, and the observers of this test.
        wait_until(lambda: len(observer.client_list()) <= 8)
        stop.set()
        errors = [waiter.exception(timeout=25) for waiter in waiters]
        assert all(isinstance(error, LockError) for error in errors)
        holder.release()
