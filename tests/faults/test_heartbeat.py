"""Heartbeats and faults: a real Redis is paused, killed and restarted while locks are held."""

from __future__ import annotations

import _thread
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
import redis
from beat_now import beat_now, extend_now
from clients import backend_on
from relay import Relay
from silent_connection import SilentConnection
from wait_until import (
    PATIENT,
    TTL_MS,
    results_of_extensions,
    wait_until,
    wait_until_extended,
)

from syncguard import (
    ExtendResult,
    LockError,
    LockEvent,
    LockLost,
    generate_lock_id,
    lock,
    with_telemetry,
)
from syncguard._heartbeat import backend_connection, heartbeat, heartbeat_thread
from syncguard._heartbeat.backend_connection import BackendConnection, WakeableSelector
from syncguard._heartbeat.heartbeat_thread import HeartbeatThread
from syncguard._lock import background_threads
from syncguard._lock.background_threads import BackgroundThreads
from syncguard.clock import holder_clock_ms
from syncguard.redis import RedisBackend
from syncguard.redis.script_calls import MAX_EXTENDED_TOGETHER
from syncguard.testing import RedisServer


def syncguard_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("syncguard")]


def heartbeat_threads() -> list[str]:
    return [name for name in syncguard_threads() if name == "syncguard-heartbeat"]


def test_a_lock_with_auto_extend_is_never_seen_free_while_it_outlives_its_ttl_twice(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    with backend_on(syncguard_redis.port) as observer:
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            first, looks = held.deadline_ms, 0
            while held.deadline_ms < first + 2 * TTL_MS or looks <= 100:
                assert observer.is_locked("k")
                looks += 1
            assert not held.lost
        assert not observer.is_locked("k")


def test_one_transient_fault_does_not_end_the_heartbeat(frail_redis: RedisServer) -> None:
    """If one error ended the heartbeat, the lock would be lost after its TTL."""
    with backend_on(frail_redis.port) as backend:
        ours = lock(backend, "k", ttl_ms=30_000, auto_extend=True)
        with ours as held:
            before = held.expires_at_ms
            frail_redis.kill()
            beat_now(ours)
            frail_redis.restart()
            wait_until(lambda: held.expires_at_ms > before)
            assert not held.lost
        assert not backend.is_locked("k")


def test_a_script_flush_does_not_end_the_heartbeat(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)
        observer.script_flush()
        wait_until_extended(held)


def test_the_deadline_counts_from_the_request_and_not_from_the_answer(
    frail_redis: RedisServer,
) -> None:
    with backend_on(frail_redis.port) as backend:
        # The answer may take a third of the TTL, and Redis may be stopped for some seconds.
        ours = lock(backend, "k", ttl_ms=60_000, auto_extend=True)
        with ours as held:
            extend_now(ours, held)
            connection = heartbeat._heartbeat.thread.connections[id(backend), None]
            before = held.expires_at_ms
            with frail_redis.paused():
                beat_now(ours)
                wait_until(lambda: bool(connection.in_flight))
                unanswered_at = holder_clock_ms()
            wait_until(lambda: held.expires_at_ms > before)
            assert held.deadline_ms <= unanswered_at + 60_000


def test_a_thousand_locks_on_many_backends_need_one_thread(syncguard_redis: RedisServer) -> None:
    with ExitStack() as stack:
        backends = [stack.enter_context(backend_on(syncguard_redis.port)) for _ in range(4)]
        for backend in backends:
            with lock(backend, "k", ttl_ms=15_000, auto_extend=True):
                # They are started by other threads.
                wait_until(
                    lambda: {"syncguard-background", "syncguard-undo"} <= {*syncguard_threads()}
                )
                needed_by_one_lock = len(syncguard_threads())
        helds = [
            stack.enter_context(lock(backends[n % 4], f"k{n}", ttl_ms=15_000, auto_extend=True))
            for n in range(1_000)
        ]
        first = {held.lock_id: held.expires_at_ms for held in helds}
        wait_until(lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds), within_s=60)
        wait_until(lambda: heartbeat_threads() == ["syncguard-heartbeat"])
        # A thread that opened a connection ends after a while.
        wait_until(lambda: len(syncguard_threads()) <= needed_by_one_lock, within_s=60)
        assert not any(held.lost for held in helds)


def test_extensions_that_are_due_together_use_one_connection(
    syncguard_redis: RedisServer, observer: redis.Redis
) -> None:
    """The extensions of all locks use one connection."""

    def connections() -> int:
        return len([c for c in observer.client_list() if c["name"] == "together"])

    with ExitStack() as stack:
        backend = stack.enter_context(backend_on(syncguard_redis.port, client_name="together"))
        helds = [
            stack.enter_context(lock(backend, f"k{n}", ttl_ms=TTL_MS, auto_extend=True))
            for n in range(50)
        ]
        first = {held.lock_id: held.expires_at_ms for held in helds}
        wait_until(lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds))
        # The kept connection of the backend, and the heartbeat's. One that was replaced is closed.
        wait_until(lambda: connections() <= 2)


def test_nothing_extends_a_lock_after_its_block(backend: RedisBackend) -> None:
    """Also not if a block ends at the moment when an extension is due."""
    for _ in range(4):
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            due = held.deadline_ms - TTL_MS * 2 / 3
            wait_until(lambda due=due: holder_clock_ms() >= due)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_the_thread_ends_when_nothing_has_needed_it_for_a_while(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_thread, "IDLE_MS", 50)
    monkeypatch.setattr(backend_connection, "IDLE_MS", 50)
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)
    wait_until(lambda: not heartbeat_threads())
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)


def test_a_connection_that_the_server_closed_while_idle_does_not_keep_the_thread_busy(
    frail_redis: RedisServer,
) -> None:
    with backend_on(frail_redis.port) as backend:
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            wait_until_extended(held)
            connection = heartbeat._heartbeat.thread.connections[id(backend), None]
            assert connection.channel is not None
            with frail_redis.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            # The thread closes the connection. Else the closed socket would wake it for ever.
            wait_until(lambda: connection.channel is None)
            wait_until_extended(held)


def test_half_a_reply_from_one_server_does_not_stop_the_others(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    """A relay forwards only the beginning of each answer to an extension."""
    with Truncating(syncguard_redis.port) as relay, redis.Redis(port=relay.port) as client:
        slow = RedisBackend(client, key_prefix="slow", on_release_error=lambda _e, _c: None)
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as healthy:
            with pytest.raises(LockLost):
                with lock(slow, "k", 900, auto_extend=True, acquisition=PATIENT) as held:
                    relay.truncates = True
                    wait_until(lambda: held.lost)
            assert not healthy.lost


@pytest.mark.parametrize("telemetry", [False, True])
def test_what_does_not_fit_the_send_buffer_is_sent_when_the_socket_is_writable(
    syncguard_redis: RedisServer, telemetry: bool
) -> None:
    requests = 150
    extensions = [(generate_lock_id(), 1_000) for _ in range(requests * MAX_EXTENDED_TOGETHER)]
    answers: list[ExtendResult | LockError] = []
    with (
        Buffering(syncguard_redis.port, requests) as relay,
        backend_on(relay.port) as bare,
        closing(WakeableSelector()) as selector,
    ):
        backend = with_telemetry(bare, on_event=lambda _event: None) if telemetry else bare
        channel = backend.open_extend_channel(20_000)
        connection = BackendConnection(backend)
        selector.watch(channel, connection)
        with socket.socket(fileno=os.dup(channel.fileno())) as its_socket:
            its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        channel.send(extensions)
        assert channel.wants_to_write, "the kernel took it all"
        relay.reads.set()
        while len(answers) < len(extensions):
            # No answer arrives before everything was sent: only a writable socket wakes the wait.
            assert selector.wait(20) == [connection], "the rest was not sent"
            answers += channel.receive()
        assert selector.wait(0) == [], "woken by a writable socket with nothing to send"
        channel.close()
    assert answers == [ExtendResult(False)] * len(extensions)


class Buffering(Relay):
    """Reads nothing until ``reads`` is set, then forwards the requests when all have arrived."""

    def __init__(self, port: int, requests: int) -> None:
        super().__init__(port)
        self.reads = threading.Event()
        self._requests = requests
        self._buffer = bytearray()
        self._complete = False

    def request(self, data: bytes) -> bytes:
        begins = not self._buffer and b"EVAL" not in data
        if begins or self._complete:
            return data
        self.reads.wait(20)
        self._buffer += data
        self._complete = self._buffer.count(b"EVAL") >= self._requests
        return bytes(self._buffer) if self._complete else b""


def test_connecting_to_a_server_that_hangs_ends_at_the_time_limit(
    frail_redis: RedisServer,
) -> None:
    with (
        backend_on(frail_redis.port, socket_timeout=None) as backend,
        ThreadPoolExecutor() as pool,
        frail_redis.paused(),
    ):
        opening = pool.submit(backend.open_extend_channel, 200)
        with pytest.raises(LockError) as caught:
            opening.result(timeout=20)
    assert caught.value.code == "NetworkTimeout"


class Truncating(Relay):
    """With ``truncates``, forwards only three bytes of each answer."""

    truncates = False

    def reply(self, data: bytes) -> bytes:
        return data[:3] if self.truncates else data


def test_a_lock_with_a_ttl_of_a_year_can_be_extended(backend: RedisBackend) -> None:
    """A selector cannot sleep for more than 24 days at once."""
    with lock(backend, "long", ttl_ms=365 * 24 * 3600 * 1000, auto_extend=True):
        with lock(backend, "short", ttl_ms=TTL_MS, auto_extend=True) as held:
            wait_until_extended(held)


def test_a_short_lock_does_not_wait_for_the_silent_connection_of_a_long_one(
    syncguard_redis: RedisServer,
) -> None:
    """The long lock would wait 40 s for its answer: the short one is extended before it is lost."""
    with SilentConnection(syncguard_redis.port) as relay, backend_on(relay.port) as backend:
        long = lock(backend, "long", ttl_ms=120_000, auto_extend=True)
        short = lock(backend, "short", ttl_ms=9_000, auto_extend=True)
        with long as long_held, short as short_held:
            first = long_held.expires_at_ms, short_held.expires_at_ms
            relay.trigger = long_held.lock_id.encode()
            beat_now(long)
            wait_until(lambda: relay.is_silent)
            connection = heartbeat._heartbeat.thread.connections[id(backend), None]
            silent = connection.channel
            beat_now(short)
            wait_until(lambda: short_held.lost or short_held.expires_at_ms > first[1])
            assert not short_held.lost
            assert connection.channel is not silent, "the short lock used another connection"
            wait_until(lambda: long_held.expires_at_ms > first[0])


@pytest.fixture
def own_heartbeat(monkeypatch: pytest.MonkeyPatch) -> Iterator[heartbeat.Heartbeat]:
    """A heartbeat whose clock the test may move: after that, its thread would be of no use."""
    own = heartbeat.Heartbeat()
    monkeypatch.setattr(heartbeat, "_heartbeat", own)
    yield own
    assert own.thread is not None
    own.thread._must_stop = True
    own.thread.wake()
    own.thread._thread.join(20)


def test_after_a_suspend_the_loss_is_told_within_five_seconds(
    backend: RedisBackend, own_heartbeat: heartbeat.Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspend prolongs the sleep of the thread; the next extension would be due in 20 minutes."""
    wait, sleeps_s, told = WakeableSelector.wait, [], threading.Event()

    def is_own() -> bool:
        """Else it is the thread of earlier tests, which would never end with a moved clock."""
        thread = own_heartbeat.thread
        return thread is not None and threading.current_thread() is thread._thread

    def sleep_shorter(selector: WakeableSelector, timeout_s: float) -> list[BackendConnection]:
        if not is_own():
            return wait(selector, timeout_s)
        sleeps_s.append(timeout_s)
        return wait(selector, timeout_s / 100)

    def two_hours_later() -> float:
        return holder_clock_ms() + (7_200_000 if is_own() else 0)

    monkeypatch.setattr(WakeableSelector, "wait", sleep_shorter)
    with (
        pytest.raises(LockLost),
        lock(backend, "k", ttl_ms=3_600_000, auto_extend=True, on_lost=told.set),
    ):
        assert own_heartbeat.thread is not None
        wait_until(lambda: own_heartbeat.thread.connections and sleeps_s)
        monkeypatch.setattr(heartbeat_thread, "holder_clock_ms", two_hours_later)
        assert told.wait(20)
    assert max(sleeps_s) == pytest.approx(5)


def test_a_thread_that_could_not_start_is_started_by_the_next_lock(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_thread, "IDLE_MS", 50)
    monkeypatch.setattr(backend_connection, "IDLE_MS", 50)
    wait_until(lambda: not heartbeat_threads())

    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="new thread"):
            lock(backend, "k", auto_extend=True).__enter__()
    assert not backend.is_locked("k")
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)


def test_a_slow_telemetry_callback_does_not_stop_the_heartbeats(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    go_on = threading.Event()
    extended: list[LockEvent] = []

    def slow(event: LockEvent) -> None:
        if event.type == "extend":
            go_on.wait(20)
            extended.append(event)

    with backend_on(syncguard_redis.port) as other:
        reporting = with_telemetry(other, slow)
        with lock(reporting, "reported", ttl_ms=TTL_MS, auto_extend=True) as first:
            wait_until_extended(first)
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                wait_until_extended(held)
            go_on.set()
        wait_until(lambda: bool(extended))
    assert extended[0].result == "ok"


def test_an_extension_that_is_never_answered_is_reported_as_failed(
    frail_redis: RedisServer,
) -> None:
    events: list[LockEvent] = []
    with backend_on(frail_redis.port) as bare:
        backend = with_telemetry(bare, events.append)
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                wait_until(lambda: "ok" in results_of_extensions(events))
                with frail_redis.paused():
                    wait_until(lambda: held.lost)
        wait_until(lambda: results_of_extensions(events) == {"ok", "fail"})


def test_the_reason_of_failed_extensions_is_logged_once(
    syncguard_redis: RedisServer,
    observer: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However busy the machine is, nothing times out: that would be the reason that is logged.
    monkeypatch.setattr(backend_connection, "_LEAST_ANSWER_TIMEOUT_MS", 200_000.0)
    monkeypatch.setattr(backend_connection, "_CONNECT_MS", (200_000.0, 200_000.0))
    observer.acl_setuser(
        "worker", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset=True
    )
    with (
        redis.Redis(port=syncguard_redis.port, username="worker", password="any") as client,
        RedisBackend(client, on_release_error=lambda _error, _context: None) as backend,
        pytest.raises(LockLost),
        # A busy machine may need some seconds to connect and to be refused.
        lock(backend, "secret-key", ttl_ms=9_000, auto_extend=True) as held,
    ):
        observer.acl_setuser("worker", commands=["-evalsha", "-eval"], enabled=True)
        wait_until(lambda: held.lost)
    observer.acl_deluser("worker")
    logged = [r.getMessage() for r in caplog.records if "extend locks" in r.getMessage()]
    assert len(logged) == 1
    assert "AuthFailed" in logged[0]
    assert "secret-key" not in logged[0]


def test_a_user_who_may_only_run_scripts_can_hold_a_lock_with_a_heartbeat(
    syncguard_redis: RedisServer,
    observer: redis.Redis,
) -> None:
    """Without the permission for SCRIPT LOAD, EVAL is used."""
    observer.script_flush()
    observer.acl_setuser(
        "worker",
        enabled=True,
        nopass=True,
        keys=["*"],
        commands=["+@all", "-script"],
        reset=True,
    )
    client = redis.Redis(port=syncguard_redis.port, username="worker", password="any")
    with RedisBackend(client) as backend:
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            wait_until_extended(held)
    client.close()
    observer.acl_deluser("worker")


def test_an_unexpected_error_does_not_end_the_heartbeat(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send_waiting, failures = HeartbeatThread._send_waiting, [ZeroDivisionError()]

    def fail_once(self: HeartbeatThread, connection: backend_connection.BackendConnection) -> None:
        if failures:
            raise failures.pop()
        send_waiting(self, connection)

    monkeypatch.setattr(HeartbeatThread, "_send_waiting", fail_once)
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)
    assert "Unexpected error in the heartbeat thread; continuing." in caplog.text


@pytest.mark.parametrize("are_threads_busy", [False, True], ids=["none exists", "all are busy"])
def test_a_backend_that_gets_no_thread_to_connect_does_not_stop_the_others(
    backend: RedisBackend,
    syncguard_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    are_threads_busy: bool,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    go_on = threading.Event()
    with (
        backend_on(syncguard_redis.port) as other,
        lock(backend, "healthy", ttl_ms=TTL_MS, auto_extend=True) as healthy,
    ):
        wait_until_extended(healthy)
        threads = BackgroundThreads()
        monkeypatch.setattr(background_threads, "_threads", threads)
        if are_threads_busy:
            threads.start_ahead()
            wait_until(lambda: threads.is_started)
            monkeypatch.setattr(threading.Thread, "start", refuse)
            threads.run(go_on.wait)
        else:
            monkeypatch.setattr(_thread, "start_new_thread", refuse)
        with (
            pytest.raises(LockLost),
            lock(other, "k", ttl_ms=900, auto_extend=True, acquisition=PATIENT) as held,
        ):
            wait_until(lambda: held.lost)
        go_on.set()
        monkeypatch.undo()
        assert not healthy.lost
        with lock(other, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            wait_until_extended(held)
