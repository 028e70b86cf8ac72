"""Signals: off by default, sent for each event of a lock, without effect on it if they fail."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from testsite.hashes import shown_hash

from syncguard import Acquisition, LockError, LockLost
from syncguard_django import alock, alocks, lock, locks
from syncguard_django.signals import lock_acquired, lock_lost

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


def names(received):
    return [name for name, _ in received]


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_telemetry_nothing_is_sent(backend, received):
    with lock("invoice:42", auto_extend=True):
        assert backend.acquire("invoice:42").ok is False
    assert received == []


def test_a_lock_is_acquired_contended_extended_and_released(configure, received):
    configure(TELEMETRY=True)
    with lock("invoice:42") as held, ThreadPoolExecutor(1) as other:
        with pytest.raises(LockError):
            other.submit(lock("invoice:42", acquisition=AT_ONCE).__enter__).result()
        locks["default"].extend(held.lock_id, 30_000)
    assert names(received) == ["acquired", "contended", "extended", "released"]


def test_a_signal_carries_hashes_and_no_raw_identifiers(configure, received):
    configure(TELEMETRY=True)
    with lock("invoice:42") as held:
        pass
    event = received[0][1]
    assert (event.key_hash, event.lock_id_hash) == (
        shown_hash("invoice:42"),
        shown_hash(held.lock_id),
    )
    assert "invoice:42" not in repr(received)
    assert held.lock_id not in repr(received)
    assert event.key is event.lock_id is None


def test_lookups_send_no_signal(configure, received):
    configure(TELEMETRY=True)
    assert not locks["default"].is_locked("invoice:42")
    assert locks["default"].lookup(key="invoice:42") is None
    assert received == []


def test_an_error_does_not_send_lock_contended(configure, received, syncguard_redis):
    configure(TELEMETRY=True)
    syncguard_redis.kill()
    with pytest.raises(LockError):
        locks["default"].acquire("invoice:42")
    assert received == []


def test_a_lost_lock_is_signalled_once(configure, received, syncguard_redis):
    configure(TELEMETRY=True)
    with pytest.raises(LockLost), lock("invoice:42", ttl_ms=3_000, auto_extend=True):
        with syncguard_redis.client() as client:
            client.flushall()
        wait_for(lambda: "lost" in names(received))
    assert names(received).count("lost") == 1


def test_a_lock_lost_because_redis_is_down_is_signalled(configure, received, syncguard_redis):
    configure(TELEMETRY=True)
    reported = []
    with (
        pytest.raises(LockLost),
        lock("invoice:42", ttl_ms=3_000, auto_extend=True, on_lost=reported.append) as held,
    ):
        syncguard_redis.kill()
        wait_for(lambda: reported)
    assert reported == [held]
    told = [name for name in names(received) if name != "extended"]  # before Redis was killed
    assert told == ["acquired", "lost"]


def test_a_callback_without_arguments_is_called_too(configure, syncguard_redis):
    configure(TELEMETRY=True)
    reported = []
    with (
        pytest.raises(LockLost),
        lock("invoice:42", ttl_ms=3_000, on_lost=lambda: reported.append(1)),
    ):
        syncguard_redis.kill()
        wait_for(lambda: reported)
    assert reported == [1]


def test_an_error_of_a_receiver_does_not_affect_the_lock(configure, caplog):
    configure(TELEMETRY=True)

    def broken(**_kwargs):
        raise ZeroDivisionError

    lock_acquired.connect(broken)
    try:
        with caplog.at_level(logging.ERROR, "django.dispatch"), lock("invoice:42") as held:
            held.ensure_held()
    finally:
        lock_acquired.disconnect(broken)
    assert "ZeroDivisionError" in caplog.text


def test_an_async_receiver_of_a_blocking_lock_in_a_loop_does_not_affect_the_lock(
    configure, caplog, syncguard_redis, monkeypatch
):
    configure(TELEMETRY=True)
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    reported = []

    async def receive(**_kwargs):
        reported.append("signal")

    async def run():
        with (
            pytest.raises(LockLost),
            lock("invoice:42", 30_000, on_lost=lambda: reported.append("lost")),
        ):
            with syncguard_redis.client() as client:
                client.flushall()

    lock_acquired.connect(receive)
    lock_lost.connect(receive)
    try:
        asyncio.run(run())
        wait_for(lambda: reported)  # another thread calls it
    finally:
        lock_acquired.disconnect(receive)
        lock_lost.disconnect(receive)
    assert reported == ["lost"]
    assert "use alock() inside an event loop" in caplog.text


def test_an_asyncio_lock_is_signalled_in_the_background(configure, received):
    configure(TELEMETRY=True)

    async def run():
        async with alock("invoice:42") as held:
            assert (await alocks["default"].acquire("invoice:42")).ok is False
            await alocks["default"].lookup(key="invoice:42")
            await alocks["default"].extend(held.lock_id)
        while len(received) < 4:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert sorted(names(received)) == ["acquired", "contended", "extended", "released"]


@pytest.mark.parametrize("with_callback", [False, True])
def test_a_lost_asyncio_lock_is_signalled(configure, syncguard_redis, with_callback):
    configure(TELEMETRY=True)
    reported = []

    async def receive(**_kwargs):
        reported.append("signal")

    async def on_lost():
        reported.append("callback")

    async def run():
        options = {"on_lost": on_lost} if with_callback else {}
        with pytest.raises(LockLost):
            async with alock("invoice:42", ttl_ms=3_000, auto_extend=True, **options):
                syncguard_redis.kill()
                while "signal" not in reported:
                    await asyncio.sleep(0.01)
        while with_callback and "callback" not in reported:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # no second call comes

    lock_lost.connect(receive)
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        lock_lost.disconnect(receive)
    assert reported.count("signal") == 1
    assert reported.count("callback") == int(with_callback)


def test_releasing_again_is_no_loss(configure, received):
    configure(TELEMETRY=True)
    with locks["default"].acquire("invoice:42") as acquired:
        assert acquired.release()
    assert not acquired.release()
    assert names(received) == ["acquired", "released"]


def test_releasing_again_is_no_loss_in_asyncio(configure, received):
    configure(TELEMETRY=True)

    async def main():
        acquired = await alocks["default"].acquire("invoice:42")
        assert await acquired.release()
        assert not await acquired.release()
        await alocks["default"].acquire("marker")
        while names(received).count("acquired") < 2:  # signals are sent in the background
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert names(received) == ["acquired", "released", "acquired"]


def test_a_lock_that_was_lost_before_its_release_is_signalled_once(configure, received):
    configure(TELEMETRY=True)
    acquired = locks["default"].acquire("invoice:42")
    info = locks["default"].lookup(key="invoice:42")
    locks.inspector("default").force_release(
        info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
    )
    assert not acquired.release()
    assert not acquired.release()
    assert names(received) == ["acquired", "lost"]
