"""Holders and the heartbeat: interrupts, process exit, closed backends, kept locks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import redis
from clients import backend_on
from relay import Relay
from wait_until import TTL_MS, wait_until, wait_until_extended

from syncguard import Held, lock
from syncguard._heartbeat import backend_connection, heartbeat
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


def test_a_lock_whose_block_ended_without_exit_is_not_extended_for_ever(
    backend: RedisBackend,
) -> None:
    """As after an interrupt at the entry of ``__exit__``: none of its lines runs."""
    told: list[Held] = []
    ours = lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True, on_lost=told.append)
    held = ours.__enter__()
    wait_until_extended(held)
    del ours
    gc.collect()
    wait_until(lambda: not backend.is_locked("k"))
    assert not told


def test_a_holder_may_be_interrupted_by_another_holder_at_any_line(backend: RedisBackend) -> None:
    """A signal handler, or a generator that the garbage collector closes, may hold a lock too."""
    interrupted: list[str] = []

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and frame.f_code.co_filename == heartbeat.__file__:
            sys.settrace(None)
            interrupted.append(f"{frame.f_lineno}")
            with lock(backend, "inner", ttl_ms=60_000, auto_extend=True):
                pass
            sys.settrace(trace)
        return trace

    def interrupting() -> None:
        sys.settrace(trace)
        try:
            with lock(backend, "outer", ttl_ms=60_000, auto_extend=True):
                pass
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor() as pool:
        pool.submit(interrupting).result(timeout=30)
    assert len(interrupted) > 8
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        wait_until_extended(held)


def test_a_lock_that_is_acquired_during_process_exit_is_extended_too(
    syncguard_redis: RedisServer,
) -> None:
    program = """
import atexit, sys, time

def is_extended():
    with backend.lock("k", ttl_ms=9_000, auto_extend=True) as held:
        before, deadline = held.expires_at_ms, time.monotonic() + 30
        while held.expires_at_ms == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return held.expires_at_ms > before

atexit.register(lambda: print("extended:", is_extended()))

from syncguard.redis import RedisBackend
backend = RedisBackend.from_url(sys.argv[1])
assert is_extended()  # since Python 3.12 no thread can start during exit
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, syncguard_redis.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == "extended: True\n", ended.stderr


def test_a_backend_that_is_closed_leaves_no_connection_of_its_heartbeat(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        backend_connection, "IDLE_MS", 3_600_000
    )  # no connection is closed for being idle
    with syncguard_redis.client() as observer:
        with backend_on(syncguard_redis.port, client_name="closing") as backend:
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                wait_until_extended(held)
            wait_until(lambda: connections_named(observer, "closing") == 2)
        wait_until(lambda: connections_named(observer, "closing") == 0)


def test_a_held_lock_is_extended_after_its_backend_is_closed(
    backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    # An extension that takes a third of the TTL would be logged.
    with lock(backend, "k", ttl_ms=15_000, auto_extend=True) as held:
        wait_until_extended(held)
        backend.close()
        wait_until_extended(held)
    assert not caplog.records


def connections_named(observer: redis.Redis, name: str) -> int:
    return len([c for c in observer.client_list() if c["name"] == name])


@pytest.mark.parametrize("auto_extend", [False, True])
def test_an_extension_in_flight_does_not_overwrite_the_ttl_of_a_kept_lock(
    syncguard_redis: RedisServer, auto_extend: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is waited for so long: a busy machine may need more than a third of the TTL.
    monkeypatch.setattr(backend_connection, "_LEAST_ANSWER_TIMEOUT_MS", 20_000.0)
    with (
        Late(syncguard_redis.port) as relay,
        backend_on(syncguard_redis.port) as backend,
        backend_on(relay.port) as slow,
    ):
        backend.open_extend_channel = slow.open_extend_channel  # type: ignore[method-assign]
        with lock(backend, "k", ttl_ms=9_000, auto_extend=auto_extend) as held:
            if auto_extend:
                wait_until(relay.holds_back.is_set)
                threading.Timer(0.1, relay.go_on.set).start()
            held.keep(60_000)
        relay.go_on.set()
        wait_until(lambda: relay.passed == relay.came)
        info = backend.lookup(key="k")
        assert info is not None
        assert info.expires_at_ms > held.expires_at_ms + 30_000


class Late(Relay):
    """Holds extensions back until ``go_on`` is set."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.holds_back = threading.Event()
        self.go_on = threading.Event()
        self.came = self.passed = 0

    def request(self, data: bytes) -> bytes:
        if b"EVAL" in data:
            self.came += 1
            self.holds_back.set()
            self.go_on.wait(20)
            self.passed += 1
        return data
