"""Threads of SyncGuard that are killed are replaced; and holders start none where it is unsafe."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import redis
from clients import backend_on
from wait_until import TTL_MS, wait_until, wait_until_extended

from syncguard import Held, LockLost, lock
from syncguard._heartbeat import heartbeat
from syncguard.clock import holder_clock_ms
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


def heartbeat_thread() -> threading.Thread:
    thread = heartbeat._heartbeat.thread
    assert thread is not None
    return thread._thread


def kill(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread, at its next bytecode, and wait until it has ended."""
    heartbeat._heartbeat.thread.wake()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
    heartbeat._heartbeat.thread.wake()
    thread.join(20)
    assert not thread.is_alive()


def test_the_locks_of_a_killed_heartbeat_thread_go_on_with_another_one(
    backend: RedisBackend, syncguard_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        backend_on(syncguard_redis.port) as other,
        lock(backend, "a", ttl_ms=15_000, auto_extend=True) as a,
        lock(other, "b", ttl_ms=15_000, auto_extend=True) as b,
    ):
        wait_until(lambda: len(heartbeat._heartbeat.thread.connections) >= 2)
        for _ in range(2):
            killed = heartbeat_thread()
            kill(killed)
            wait_until_extended(a)
            wait_until_extended(b)
            assert heartbeat_thread() is not killed
    assert "The heartbeat thread was ended by SystemExit." in caplog.text
    assert not backend.is_locked("a")


def test_a_loss_is_told_after_the_heartbeat_thread_was_killed(backend: RedisBackend) -> None:
    told: list[Held] = []
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=15_000, auto_extend=True, on_lost=told.append) as held:
            kill(heartbeat_thread())
            backend.release(held.lock_id)
            wait_until(lambda: told == [held])


def test_if_no_thread_can_replace_it_the_next_lock_starts_one_for_all(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with lock(backend, "before", ttl_ms=15_000, auto_extend=True) as before:
        killed = heartbeat_thread()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            kill(killed)
        assert heartbeat_thread() is killed
        with lock(backend, "next", ttl_ms=15_000, auto_extend=True) as following:
            wait_until_extended(before)
            wait_until_extended(following)


def test_a_killed_connect_thread_does_not_end_the_extensions_of_its_backend(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, killed = RedisBackend.open_extend_channel, []

    def die_once(self: RedisBackend, timeout_ms: float) -> object:
        if not killed:
            killed.append(True)
            raise SystemExit
        return opens(self, timeout_ms)

    monkeypatch.setattr(RedisBackend, "open_extend_channel", die_once)
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)
    assert killed


@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_after_gevent_killall_heartbeats_and_callbacks_go_on(syncguard_redis: RedisServer) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AFTER_KILLALL, syncguard_redis.url],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout == "extended\ntold\n", ended.stderr


AFTER_KILLALL = """
from gevent import monkey; monkey.patch_all()
import gc, sys, time, gevent
from gevent.greenlet import Greenlet
from syncguard import LockLost, lock
from syncguard.redis import RedisBackend

def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

def kill_all():
    gevent.killall([o for o in gc.get_objects() if isinstance(o, Greenlet) and not o.dead])

def extended(held):
    before = held.expires_at_ms
    wait_until(lambda: held.expires_at_ms > before)

backend = RedisBackend.from_url(sys.argv[1], dispose_timeout_ms=20_000)
told = []
try:
    with lock(backend, "k", ttl_ms=9_000, auto_extend=True, on_lost=told.append) as held:
        extended(held)
        kill_all()
        extended(held)
        print("extended", flush=True)
        kill_all()
        backend.release(held.lock_id)
        wait_until(lambda: told == [held])
except LockLost:
    print("told", flush=True)
"""


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The native ids of the threads that called Thread.start().

    Not ``ident``: a new thread may get the one of a thread that has ended.
    """
    native_ids: list[int] = []
    start = threading.Thread.start

    def record(thread: threading.Thread) -> None:
        native_ids.append(threading.get_native_id())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    return native_ids


def test_under_a_lock_with_a_heartbeat_no_thread_is_started_where_the_holder_runs(
    syncguard_redis: RedisServer, started_by: list[int]
) -> None:
    """On CPython 3.10 and 3.11 an interrupt of the holder would reach the new thread."""
    told = threading.Event()
    client = redis.Redis(port=syncguard_redis.port)
    with client, RedisBackend(client, dispose_timeout_ms=20_000) as backend:
        with lock(backend, "outer", ttl_ms=60_000, auto_extend=True):
            started_by.clear()
            with lock(backend, "inner", ttl_ms=60_000, auto_extend=True):
                pass
            with backend.acquire("inner"):  # type: ignore[union-attr]
                pass
            with pytest.raises(LockLost):
                with lock(backend, "inner", ttl_ms=60_000, on_lost=told.set) as held:
                    backend.release(held.lock_id)
                    held.renewed(holder_clock_ms() - 60_000, 60_000, held.expires_at_ms)
            assert told.wait(20)
            assert threading.get_native_id() not in started_by


def test_the_heartbeat_thread_starts_no_thread(
    backend: RedisBackend, started_by: list[int]
) -> None:
    """On CPython 3.10 and 3.11 it would wait for ever if it is killed at that moment."""
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)  # on a connection that was opened meanwhile
        assert heartbeat_thread().native_id not in started_by
