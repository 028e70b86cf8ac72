"""Waiting for a lock in asyncio: a release or the expiry ends the wait, and it has a time limit.

Each known problem of other libraries has a test: a waiter that still sleeps after the lock expired,
one that blocks without limit, one that fails with a short socket timeout.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import suppress

import pytest
from wait_until import wait_until

from syncguard import Acquisition, LockError, NetworkTimeout, aio
from syncguard._lock import acquire_with_retries
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.undo_thread import undo_thread

MINUTES_MS = 10 * 60_000
PATIENT = Acquisition(retry_delay_ms=MINUTES_MS, jitter="none", timeout_ms=MINUTES_MS)
"""Minutes between two attempts, so an earlier attempt was caused by a wake-up."""


@pytest.fixture
def take(syncguard_redis):
    """Acquires and releases the lock; returns its fence."""

    async def run(key, client, options):
        async with (
            AsyncRedisBackend.from_url(syncguard_redis.url, **client) as backend,
            aio.lock(backend, key, **options) as held,
        ):
            return held.fence

    return lambda key, *, client=None, **options: asyncio.run(run(key, client or {}, options))


@pytest.fixture
def holder(syncguard_redis):
    with syncguard_redis.client() as client:
        yield RedisBackend(client)


def in_background(function):
    """Run the function in a thread. Returns a function that waits for its result."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(60)
        assert outcome, "the waiter is still waiting"
        return outcome[0]

    return result


def until_somebody_waits(client, key):
    deadline = time.monotonic() + 30
    while not client.exists(f"syncguard:id::waiting:syncguard:{key}"):
        assert time.monotonic() < deadline, "no caller waits"
        time.sleep(0.002)


def test_a_waiter_is_woken_by_the_release(client, holder, take):
    held = holder.acquire("k", MINUTES_MS)
    waiter = in_background(lambda: take("k", acquisition=PATIENT))
    until_somebody_waits(client, "k")
    held.release()
    assert waiter() > held.fence


def test_each_of_several_waiters_acquires_the_lock(client, holder, take):
    held = holder.acquire("k", MINUTES_MS)
    waiters = [in_background(lambda: take("k", acquisition=PATIENT)) for _ in range(4)]
    until_somebody_waits(client, "k")
    held.release()
    assert len({waiter() for waiter in waiters}) == 4


def test_a_waiter_that_stops_waiting_wakes_another(syncguard_redis, client, holder):
    async def until(condition):
        while not condition():
            await asyncio.sleep(0.002)

    async def main():
        held = holder.acquire("k", MINUTES_MS)
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            waiter = backend.open_waiter("k")
            await waiter.attempt(1_000, None, MINUTES_MS)
            waiting = asyncio.ensure_future(waiter.wait(MINUTES_MS, None))
            await until(lambda: client.info("clients")["blocked_clients"] == 1)
            held.release()
            assert await waiting is True
            # It has received the wake-up, and stops without an attempt.
            await waiter.close()
            await until(lambda: client.llen("syncguard:id::wake:syncguard:k") == 1)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_waiter_acquires_the_lock_when_it_expires(holder, take):
    holder.acquire("k", 1_000)
    assert take("k", acquisition=PATIENT) == "000000000000002"


def test_a_wait_works_with_a_shorter_socket_timeout(holder, take):
    for _ in range(10):  # a busy machine may take longer than the time-out for one call
        held = holder.acquire("k", MINUTES_MS)
        assert holder.extend(held.lock_id, 900).ok
        with suppress(NetworkTimeout):
            assert take("k", acquisition=PATIENT, client={"socket_timeout": 0.3}) > held.fence
            return
        wait_until(lambda: undo_thread.pending == 0 and not holder.is_locked("k"))
    pytest.fail("a call timed out in every attempt")


def test_a_lock_without_ttl_and_wake_up_is_retried_with_backoff(client, take):
    """As if a client in another language had stored the lock without a TTL."""
    record = {"lockId": "T" * 22, "expiresAtMs": 10**14, "acquiredAtMs": 0, "key": "k"}
    client.set("syncguard:k", json.dumps(record | {"fence": "000000000000001"}))
    policy = Acquisition(retry_delay_ms=5, max_retries=3, timeout_ms=60_000)
    with pytest.raises(LockError, match="after 3 retries") as caught:
        take("k", acquisition=policy)
    assert caught.value.code == "AcquisitionTimeout"


def test_waiting_ends_after_timeout_ms(holder, take, monkeypatch):
    monkeypatch.setattr(acquire_with_retries, "MIN_ATTEMPT_MS", MINUTES_MS)
    holder.acquire("k", MINUTES_MS)
    policy = Acquisition(retry_delay_ms=MINUTES_MS, timeout_ms=150)
    with pytest.raises(LockError, match="within 150 ms") as caught:
        take("k", acquisition=policy)
    assert caught.value.code == "AcquisitionTimeout"


def test_a_signal_ends_the_waiting(client, holder, take):
    holder.acquire("k", MINUTES_MS)
    signal = threading.Event()
    waiter = in_background(lambda: take("k", acquisition=PATIENT, signal=signal))
    until_somebody_waits(client, "k")
    signal.set()
    error = waiter()
    assert isinstance(error, LockError)
    assert error.code == "Aborted"
