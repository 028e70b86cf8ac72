"""Lost locks: ``on_lost`` runs in time, by the holder's clock, and other locks are not affected."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial

import pytest
import redis
from clients import backend_on
from wait_until import (
    LOSS_TTL_MS,
    PATIENT,
    TTL_MS,
    is_between_two_beats,
    wait_until,
    wait_until_extended,
)

from syncguard import (
    LockLost,
    lock,
)
from syncguard._heartbeat.on_lost import THREADS
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

request: ContextVar[str] = ContextVar("request", default="none")


def test_a_paused_redis_loses_the_lock_within_its_ttl_on_the_holders_clock(
    frail_redis: RedisServer, backend: RedisBackend
) -> None:
    # redis-py's default client waits for seconds and retries many times.
    client = redis.Redis(port=frail_redis.port)
    frail = RedisBackend(client)
    told: list[float] = []
    with lock(backend, "healthy", ttl_ms=TTL_MS, auto_extend=True) as healthy:
        for n in range(3):  # the machine may pause this process when the loss is due
            told.clear()
            with pytest.raises(LockLost):
                with lock(
                    frail,
                    f"k{n}",
                    ttl_ms=TTL_MS,
                    auto_extend=True,
                    on_lost=lambda: told.append(holder_clock_ms()),
                ) as held:
                    wait_until(lambda: is_between_two_beats(held))
                    frail_redis.pause()
                    paused_at = holder_clock_ms()
                    wait_until(lambda: held.lost and bool(told))
                    wait_until_extended(healthy)
                    frail_redis.resume()
                    with pytest.raises(LockLost):
                        held.ensure_held()
            # The other backend, on a healthy server, lost nothing meanwhile.
            assert not healthy.lost
            # The last successful request was sent before the pause, so the deadline is less than a
            # TTL after the pause. The callback ran before that, though Redis had not answered.
            assert held.deadline_ms < paused_at + TTL_MS
            if told[0] <= paused_at + TTL_MS:
                break
        else:
            pytest.fail("the loss was told late every time")
    frail.close()
    client.close()


def test_a_lost_lock_stays_lost_when_the_server_is_back(frail_redis: RedisServer) -> None:
    with backend_on(frail_redis.port) as backend:
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=LOSS_TTL_MS, auto_extend=True) as held:
                with frail_redis.paused():
                    wait_until(lambda: held.lost)
                with frail_redis.client() as client:
                    wait_until(client.ping)
                assert held.lost
        # The release was attempted anyway, or the TTL has ended: the lock is gone.
        wait_until(lambda: not backend.is_locked("k"))


def test_a_lock_that_was_seen_as_lost_stays_lost(backend: RedisBackend) -> None:
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=60_000) as held:
            held.renewed(holder_clock_ms() - 60_000, 60_000, held.expires_at_ms)
            assert held.lost
            # An answer that came too late: other code may have reacted to the loss already.
            held.renewed(holder_clock_ms(), 60_000, held.expires_at_ms)
            assert held.lost


def test_an_error_of_the_body_is_raised_instead_of_lock_lost(frail_redis: RedisServer) -> None:
    with backend_on(frail_redis.port) as backend:
        with pytest.raises(ZeroDivisionError):
            with lock(backend, "k", ttl_ms=LOSS_TTL_MS, auto_extend=True) as held:
                with frail_redis.paused():
                    wait_until(lambda: held.lost)
                raise ZeroDivisionError


def test_a_lock_that_was_force_released_is_lost_at_the_next_beat(backend: RedisBackend) -> None:
    told = threading.Event()
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True, on_lost=told.set) as held:
            (info,) = backend.live_locks()
            backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash)
            assert told.wait(20)
            # Long before its TTL, because the server answered that it is gone.
            assert holder_clock_ms() < held.deadline_ms
            assert held.lost


def test_a_slow_on_lost_delays_neither_other_heartbeats_nor_other_callbacks(
    backend: RedisBackend,
) -> None:
    release, second = threading.Event(), threading.Event()

    def free(key: str) -> None:
        held = backend.lookup(key=key)
        assert held is not None
        backend.force_release(held.key_hash, fence=held.fence, lock_id_hash=held.lock_id_hash)

    with lock(backend, "alive", ttl_ms=TTL_MS, auto_extend=True) as alive, ExitStack() as stack:
        stack.enter_context(pytest.raises(LockLost))
        stack.enter_context(
            lock(backend, "a", ttl_ms=TTL_MS, auto_extend=True, on_lost=lambda: release.wait(20))
        )
        stack.enter_context(pytest.raises(LockLost))
        stack.enter_context(lock(backend, "b", ttl_ms=TTL_MS, auto_extend=True, on_lost=second.set))
        free("a")
        free("b")
        assert second.wait(20)
        before = alive.expires_at_ms
        wait_until(lambda: alive.expires_at_ms > before)
        release.set()


def test_a_thousand_losses_at_once_are_told_on_few_threads_though_one_callback_is_slow(
    frail_redis: RedisServer,
) -> None:
    # Threads, not their numbers: the next thread gets the number of one that has ended.
    called: dict[int, threading.Thread] = {}
    told: set[int] = set()
    all_are_lost, others_are_told = threading.Event(), threading.Event()

    def on_lost(number: int) -> None:
        called[number] = threading.current_thread()
        assert all_are_lost.wait(120)
        if number == 0:
            assert others_are_told.wait(60)
        told.add(number)
        if len(told) == 999 and 0 not in told:
            others_are_told.set()

    with backend_on(frail_redis.port) as backend:
        # Not ``lambda n=n``: it takes an argument, so it would get the Held as its number.
        locks = [
            lock(backend, f"k{n}", ttl_ms=20_000, auto_extend=True, on_lost=partial(on_lost, n))
            for n in range(1_000)
        ]
        helds = [each.__enter__() for each in locks]
        with frail_redis.client() as client:
            client.flushdb()
        wait_until(lambda: all(held.known_lost for held in helds), within_s=60)
        # No callback has returned yet.
        wait_until(lambda: len(called) >= THREADS)
        assert len(called) == THREADS == 16
        all_are_lost.set()
        wait_until(lambda: len(told) == 1_000, within_s=60)
        for each in locks:
            with pytest.raises(LockLost):
                each.__exit__(None, None, None)
    # One more if the last loss was enqueued after the first callback had returned.
    assert len(set(called.values())) <= THREADS + 1


def test_on_lost_runs_in_the_context_of_its_own_lock(backend: RedisBackend) -> None:
    seen: dict[str, str] = {}

    def hold(name: str) -> None:
        request.set(name)
        with pytest.raises(LockLost):
            with lock(
                backend,
                name,
                ttl_ms=LOSS_TTL_MS,
                auto_extend=True,
                on_lost=lambda: seen.update({name: request.get()}),
            ) as held:
                backend.release(held.lock_id)
                wait_until(lambda: name in seen)

    with ThreadPoolExecutor(2) as threads:
        for held in [threads.submit(hold, name) for name in ("a", "b")]:
            held.result()
    assert seen == {"a": "a", "b": "b"}


def test_a_failing_on_lost_is_logged_and_heartbeats_continue(
    backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_held: Held) -> None:
        raise ZeroDivisionError

    with pytest.raises(LockLost):
        with lock(
            backend, "k", ttl_ms=1_000, auto_extend=True, acquisition=PATIENT, on_lost=fail
        ) as held:
            backend.release(held.lock_id)
            wait_until(lambda: "on_lost" in caplog.text)
    with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)


def test_the_lock_of_a_hung_holder_is_not_extended_after_max_hold_ms(backend: RedisBackend) -> None:
    told = threading.Event()
    # Long enough for a busy machine, which must extend the lock a few times.
    ttl_ms, max_hold_ms = 6_000, 8_000
    with pytest.raises(LockLost):
        with lock(
            backend, "k", ttl_ms, auto_extend=True, max_hold_ms=max_hold_ms, on_lost=told.set
        ) as held:
            acquired_at = held._grant.sent_at_ms
            assert told.wait(60)
            lost_after = holder_clock_ms() - acquired_at
            assert held.lost
            # Extended beyond its first TTL, and lost at most one TTL after the last extension.
            assert held.deadline_ms - acquired_at > max_hold_ms
            assert held.deadline_ms - acquired_at <= max_hold_ms + ttl_ms
            assert lost_after >= max_hold_ms - ttl_ms
    wait_until(lambda: not backend.is_locked("k"))


def test_without_auto_extend_on_lost_is_called_when_the_ttl_ends(
    backend: RedisBackend,
) -> None:
    told: list[Held] = []
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=1_000, acquisition=PATIENT, on_lost=told.append) as held:
            wait_until(lambda: bool(told))
    assert told == [held]


def test_without_a_heartbeat_a_block_that_outlives_its_ttl_raises_lock_lost(
    backend: RedisBackend,
) -> None:
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=1_000, acquisition=PATIENT):
            wait_until(lambda: not backend.is_locked("k"))


def test_a_lock_is_lost_in_time_if_the_server_cannot_be_reached(
    frail_redis: RedisServer,
) -> None:
    client = redis.Redis(port=frail_redis.port)
    with client, RedisBackend(client, on_release_error=lambda _error, _context: None) as backend:
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=LOSS_TTL_MS, auto_extend=True) as held:
                frail_redis.kill()
                wait_until(lambda: held.known_lost)
