"""Heartbeats in asyncio: locks are extended or lost in time, and no loop is kept alive."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from wait_until import TTL_MS, is_between_two_beats, results_of_extensions, wait_until_async

from syncguard import LockError, LockEvent, LockLost, aio
from syncguard._heartbeat import heartbeat_async
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.redis import AsyncRedisBackend
from syncguard.testing import RedisServer


def test_asyncio_a_loop_that_used_heartbeats_is_not_kept_alive(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                before = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > before)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


def test_asyncio_the_task_ends_when_nothing_has_needed_it_for_a_while(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_async, "IDLE_MS", 50)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            for _ in range(2):
                async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                    before = held.expires_at_ms
                    await wait_until_async(lambda: held.expires_at_ms > before)  # noqa: B023
                await wait_until_async(lambda: loop not in heartbeat_async._heartbeats)

    asyncio.run(main())


def test_asyncio_a_lock_with_auto_extend_outlives_its_ttl(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                first = held.deadline_ms
                while held.deadline_ms < first + TTL_MS:
                    assert await backend.is_locked("k")
                assert not held.lost
            assert not await backend.is_locked("k")

    asyncio.run(main())


def test_asyncio_a_backend_that_is_closed_leaves_no_connection_of_its_heartbeat(
    syncguard_redis: RedisServer,
) -> None:
    def connections() -> int:
        return len([c for c in observer.client_list() if c["name"] == "closing"])

    async def main() -> None:
        url = f"{syncguard_redis.url}?client_name=closing"
        async with AsyncRedisBackend.from_url(url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                first = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > first)
            assert connections() == 2
        await wait_until_async(lambda: connections() == 0)

    with syncguard_redis.client() as observer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat_async, "IDLE_MS", 3_600_000)  # none is closed for being idle
        asyncio.run(main())


def test_asyncio_a_script_flush_does_not_end_the_heartbeat(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                first = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > first)
                with syncguard_redis.client() as client:
                    client.script_flush()
                before = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > before or held.lost)
                assert not held.lost

    asyncio.run(main())


def test_asyncio_a_paused_redis_loses_its_lock_within_the_ttl_and_no_other_lock(
    frail_redis: RedisServer, syncguard_redis: RedisServer
) -> None:
    async def main() -> None:
        told: list[float] = []

        async def on_lost() -> None:
            told.append(holder_clock_ms())

        frail = AsyncRedisBackend.from_url(frail_redis.url)
        healthy = AsyncRedisBackend.from_url(syncguard_redis.url)
        async with frail, healthy:
            async with aio.lock(healthy, "h", ttl_ms=TTL_MS, auto_extend=True) as other:
                with pytest.raises(LockLost):
                    async with aio.lock(
                        frail, "k", ttl_ms=TTL_MS, auto_extend=True, on_lost=on_lost
                    ) as held:
                        await wait_until_async(lambda: is_between_two_beats(held))
                        frail_redis.pause()
                        paused_at = holder_clock_ms()
                        await wait_until_async(lambda: held.lost and bool(told))
                        assert told[0] <= paused_at + TTL_MS
                        frail_redis.resume()
                assert not other.lost

    asyncio.run(main())


def test_asyncio_a_thousand_locks_need_one_task(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            locks = [
                aio.lock(backend, f"k{n}", ttl_ms=6_000, auto_extend=True) for n in range(1_000)
            ]
            helds = [await each.__aenter__() for each in locks]
            first = {held.lock_id: held.expires_at_ms for held in helds}
            await wait_until_async(
                lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds), 60
            )
            beating = [
                task
                for task in asyncio.all_tasks()
                if "AsyncHeartbeat._run" in repr(task.get_coro())
            ]
            assert len(beating) == 1
            for each in locks:
                await each.__aexit__(None, None, None)

    asyncio.run(main())


def test_asyncio_with_a_dead_server_the_holders_clock_detects_the_loss(
    frail_redis: RedisServer,
) -> None:
    async def main() -> None:
        errors: list[LockError] = []
        backend = AsyncRedisBackend.from_url(
            frail_redis.url, on_release_error=lambda error, _context: errors.append(error)
        )
        async with backend:
            with pytest.raises(LockLost):
                async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                    frail_redis.kill()
                    await wait_until_async(lambda: held.lost)
        assert [error.code for error in errors] in (["ServiceUnavailable"], ["NetworkTimeout"])

    asyncio.run(main())


def test_asyncio_the_deadline_counts_from_the_request_and_not_from_the_answer(
    frail_redis: RedisServer,
) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=6_000, auto_extend=True) as held:
                first = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > first)
                heartbeat = heartbeat_async._heartbeats[asyncio.get_running_loop()]
                connection = heartbeat._connections[id(backend)]
                before = held.expires_at_ms
                with frail_redis.paused():
                    paused_at = holder_clock_ms()
                    await wait_until_async(lambda: connection.used_at_ms > paused_at)
                    unanswered_at = holder_clock_ms()
                await wait_until_async(lambda: held.expires_at_ms > before)
                assert held.deadline_ms <= unanswered_at + 6_000

    asyncio.run(main())


def test_asyncio_a_lock_that_was_force_released_is_lost_at_the_next_beat(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        told: list[float] = []
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(LockLost):
                async with aio.lock(
                    backend,
                    "k",
                    ttl_ms=3_000,
                    auto_extend=True,
                    on_lost=lambda: told.append(holder_clock_ms()),
                ) as held:
                    await backend.release(held.lock_id)
                    await wait_until_async(lambda: bool(told))
                    # Long before the deadline, because the server answered that it is gone.
                    assert told[0] < held.deadline_ms - 1_000
                    assert held.lost

    asyncio.run(main())


def test_asyncio_the_lock_of_a_hung_holder_is_not_extended_after_max_hold_ms(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        told: list[Held] = []
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(LockLost):
                async with aio.lock(
                    backend,
                    "k",
                    ttl_ms=1_500,
                    auto_extend=True,
                    max_hold_ms=2_000,
                    on_lost=told.append,
                ) as held:
                    await wait_until_async(lambda: bool(told))
            assert held.deadline_ms - held._grant.sent_at_ms <= 2_000 + 1_500

    asyncio.run(main())


def test_asyncio_without_auto_extend_on_lost_is_called_when_the_ttl_ends(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        told: list[Held] = []
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(LockLost):
                async with aio.lock(backend, "k", ttl_ms=200, on_lost=told.append) as held:
                    await wait_until_async(lambda: bool(told))
        assert told == [held]

    asyncio.run(main())


def test_asyncio_an_error_of_the_body_is_raised_instead_of_lock_lost(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(ZeroDivisionError):
                async with aio.lock(backend, "k") as held:
                    await backend.release(held.lock_id)
                    raise ZeroDivisionError
            assert held.lost

    asyncio.run(main())


def test_asyncio_extensions_are_reported_even_if_they_get_no_answer(
    frail_redis: RedisServer,
) -> None:
    events: list[LockEvent] = []

    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as bare:
            backend = aio.with_telemetry(bare, events.append)
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                await wait_until_async(lambda: results_of_extensions(events) == {"ok"})
                with frail_redis.paused():
                    await wait_until_async(lambda: held.lost)

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert results_of_extensions(events) == {"ok", "fail"}


def test_asyncio_the_reason_of_failed_extensions_is_logged_once_until_one_succeeds(
    frail_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    admin = frail_redis.client()

    def allow(*commands: str) -> None:
        admin.acl_setuser("default", commands=commands, enabled=True)

    def log_lines() -> list[str]:
        lines = (record.getMessage() for record in caplog.records)
        return [text for text in lines if "extend locks" in text]

    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            async with aio.lock(backend, "secret-key", ttl_ms=20_000, auto_extend=True) as held:
                for count in (1, 2):
                    allow("-evalsha", "-eval")
                    await wait_until_async(lambda: len(log_lines()) == count)  # noqa: B023
                    before = held.expires_at_ms
                    allow("+evalsha", "+eval")
                    await wait_until_async(lambda: held.expires_at_ms > before)  # noqa: B023

    asyncio.run(main())
    admin.close()
    assert len(log_lines()) == 2
    assert all("AuthFailed" in line and "secret-key" not in line for line in log_lines())


def test_asyncio_a_server_that_does_not_answer_in_time_is_logged(
    frail_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                before = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > before)
                with frail_redis.paused():
                    await wait_until_async(lambda: held.lost)

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert "NetworkTimeout" in caplog.text
