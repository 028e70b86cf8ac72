"""Heartbeats in asyncio: locks are extended or lost in time, and no loop is kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from beat_now import beat_now_async, extend_now_async
from silent_connection import SilentConnection
from wait_until import (
    LOSS_TTL_MS,
    PATIENT,
    TTL_MS,
    is_between_two_beats,
    results_of_extensions,
    wait_until,
    wait_until_async,
    wait_until_extended_async,
)

from syncguard import ExtendResult, LockError, LockEvent, LockLost, aio, generate_lock_id
from syncguard._heartbeat import backend_connection, heartbeat_async
from syncguard._lock.held import Held
from syncguard.clock import holder_clock_ms
from syncguard.memory import AsyncMemoryBackend
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
            await wait_until_async(lambda: connections() == 2)
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
                for n in range(3):  # the machine may pause this process when the loss is due
                    told.clear()
                    with pytest.raises(LockLost):
                        async with aio.lock(
                            frail, f"k{n}", ttl_ms=TTL_MS, auto_extend=True, on_lost=on_lost
                        ) as held:
                            await wait_until_async(lambda: is_between_two_beats(held))
                            frail_redis.pause()
                            paused_at = holder_clock_ms()
                            await wait_until_async(lambda: held.lost and bool(told))
                            frail_redis.resume()
                    assert not other.lost
                    if told[0] <= paused_at + TTL_MS:
                        return
                pytest.fail("the loss was told late every time")

    asyncio.run(main())


def test_asyncio_a_thousand_locks_need_at_most_one_task(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            locks = [
                aio.lock(backend, f"k{n}", ttl_ms=15_000, auto_extend=True) for n in range(1_000)
            ]
            helds = [await each.__aenter__() for each in locks]
            first = {held.lock_id: held.expires_at_ms for held in helds}
            await wait_until_async(
                lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds), 60
            )
            beating = [
                task for task in asyncio.all_tasks() if "AsyncHeartbeat" in repr(task.get_coro())
            ]
            assert len(beating) <= 1
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
                async with aio.lock(backend, "k", ttl_ms=LOSS_TTL_MS, auto_extend=True) as held:
                    frail_redis.kill()
                    await wait_until_async(lambda: held.lost)
        assert [error.code for error in errors] in (["ServiceUnavailable"], ["NetworkTimeout"])

    asyncio.run(main())


def test_asyncio_the_deadline_counts_from_the_request_and_not_from_the_answer(
    frail_redis: RedisServer,
) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            # The answer may take a third of the TTL, and Redis may be stopped for some seconds.
            async with aio.lock(backend, "k", ttl_ms=60_000, auto_extend=True) as held:
                await extend_now_async(held, backend)
                heartbeat = heartbeat_async._heartbeats[asyncio.get_running_loop()]
                connection = heartbeat._connections[id(backend), None]
                before = held.expires_at_ms
                with frail_redis.paused():
                    paused_at = holder_clock_ms()
                    beat_now_async(held, backend)
                    await wait_until_async(lambda: connection.used_at_ms > paused_at)
                    unanswered_at = holder_clock_ms()
                await wait_until_async(lambda: held.expires_at_ms > before)
                assert held.deadline_ms <= unanswered_at + 60_000

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
                    ttl_ms=TTL_MS,
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
                    ttl_ms=LOSS_TTL_MS,
                    auto_extend=True,
                    max_hold_ms=4_000,
                    on_lost=told.append,
                ) as held:
                    await wait_until_async(lambda: bool(told))
            assert held.deadline_ms - held._grant.sent_at_ms <= 4_000 + LOSS_TTL_MS

    asyncio.run(main())


def test_asyncio_without_auto_extend_on_lost_is_called_when_the_ttl_ends(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        told: list[Held] = []
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(LockLost):
                async with aio.lock(
                    backend, "k", ttl_ms=1_000, acquisition=PATIENT, on_lost=told.append
                ) as held:
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
                await wait_until_async(lambda: "ok" in results_of_extensions(events))
                with frail_redis.paused():
                    await wait_until_async(lambda: held.lost)

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert results_of_extensions(events) == {"ok", "fail"}


def test_asyncio_the_reason_of_failed_extensions_is_logged_once_until_one_succeeds(
    frail_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is, nothing times out: that would be the reason that is logged.
    monkeypatch.setattr(backend_connection, "_LEAST_ANSWER_TIMEOUT_MS", 200_000.0)
    monkeypatch.setattr(backend_connection, "_CONNECT_MS", (200_000.0, 200_000.0))
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


def test_asyncio_the_heartbeat_goes_on_when_all_tasks_of_the_loop_are_cancelled(
    syncguard_redis: RedisServer,
) -> None:
    """As a shutdown does. The block cleans up under its lock, which needs extensions."""

    async def hold(backend: AsyncRedisBackend) -> bool:
        async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            with contextlib.suppress(asyncio.CancelledError):
                cancel_all_tasks_but_this_one_and(held)
                await asyncio.sleep(60)
            await wait_until_extended_async(held)
            await wait_until_extended_async(held)
            return not held.lost

    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            assert await asyncio.shield(asyncio.ensure_future(hold(backend)))

    def cancel_all_tasks_but_this_one_and(_held: Held) -> None:
        def cancel() -> None:
            for task in asyncio.all_tasks():
                if "main" not in repr(task.get_coro()):
                    task.cancel()

        asyncio.get_running_loop().call_soon(cancel)

    asyncio.run(main())


def test_asyncio_an_extension_that_is_cancelled_is_sent_again_and_not_logged(
    frail_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long Redis is stopped on a busy machine, nothing times out, and only that is logged.
    monkeypatch.setattr(backend_connection, "_CONNECT_MS", (50.0, 200_000.0))

    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=600_000, auto_extend=True) as held:
                connection = beat_now_async(held, backend)
                await wait_until_extended_async(held)
                for wait_for_send in (False, True):
                    await wait_until_async(lambda: connection.task is None)
                    with frail_redis.paused():
                        beat_now_async(held, backend)
                        await wait_until_async(lambda: connection.task is not None)
                        if wait_for_send:
                            await wait_until_async(lambda: connection.sent_at_ms is not None)
                        cancelled = connection.task
                        # Until it has ended: redis-py may swallow a cancellation.
                        await wait_until_async(lambda task=cancelled: not task.cancel())
                    await wait_until_extended_async(held)

    asyncio.run(main())
    assert "extend locks" not in caplog.text


def test_asyncio_a_loss_is_told_after_all_tasks_of_the_loop_were_cancelled(
    syncguard_redis: RedisServer,
) -> None:
    told: list[Held] = []

    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with pytest.raises(LockLost):
                async with aio.lock(
                    backend,
                    "k",
                    ttl_ms=900,
                    auto_extend=True,
                    acquisition=PATIENT,
                    on_lost=told.append,
                ) as held:
                    for task in asyncio.all_tasks() - {asyncio.current_task()}:
                        task.cancel()
                    await asyncio.sleep(0)
                    await backend.release(held.lock_id)
                    await wait_until_async(lambda: told == [held])

    asyncio.run(main())


def test_asyncio_a_lock_that_was_dropped_and_never_left_is_not_extended_for_ever(
    syncguard_redis: RedisServer,
) -> None:
    told: list[Held] = []

    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            ours = aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True, on_lost=told.append)
            held = await ours.__aenter__()
            await wait_until_extended_async(held)
            del ours
            gc.collect()
            deadline = held.deadline_ms
            await wait_until_async(lambda: holder_clock_ms() > deadline + TTL_MS, within_s=60)
            assert held.deadline_ms == deadline
            assert not await backend.is_locked("k")

    asyncio.run(main())
    assert not told


def test_asyncio_a_short_lock_does_not_wait_for_the_silent_connection_of_a_long_one(
    syncguard_redis: RedisServer,
) -> None:
    """The long lock would wait 40 s for its answer: the short one is extended before it is lost."""

    async def main() -> None:
        async with AsyncRedisBackend.from_url(f"redis://127.0.0.1:{relay.port}") as backend:
            async with (
                aio.lock(backend, "long", ttl_ms=120_000, auto_extend=True) as long,
                aio.lock(backend, "short", ttl_ms=9_000, auto_extend=True) as short,
            ):
                # Both may be extended in one request.
                first = long.expires_at_ms, short.expires_at_ms
                relay.trigger = long.lock_id.encode()
                beat_now_async(long, backend)
                await wait_until_async(lambda: relay.is_silent)
                beat_now_async(short, backend)
                await wait_until_async(lambda: short.lost or short.expires_at_ms > first[1])
                assert not short.lost
                await wait_until_async(lambda: long.expires_at_ms > first[0])

    with SilentConnection(syncguard_redis.port) as relay:
        asyncio.run(main())


def test_asyncio_after_a_suspend_the_loss_is_told_within_five_seconds(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the loop stops in suspend; the next extension would be due in 20 minutes."""
    told: list[Held] = []
    delays_s: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def call_sooner(
            delay_s: float, callback: Callable[..., object], *args: Any, **options: Any
        ) -> asyncio.TimerHandle:
            if getattr(callback, "__name__", "") == "_tick":
                delays_s.append(delay_s)
                delay_s /= 100
            return call_later(delay_s, callback, *args, **options)

        monkeypatch.setattr(loop, "call_later", call_sooner)
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(
                backend, "k", ttl_ms=3_600_000, auto_extend=True, on_lost=told.append
            ):
                await wait_until_async(lambda: bool(delays_s))
                monkeypatch.setattr(
                    heartbeat_async, "holder_clock_ms", lambda: holder_clock_ms() + 7_200_000
                )
                await wait_until_async(lambda: bool(told))

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert max(delays_s) == pytest.approx(5)


request: ContextVar[object] = ContextVar("request", default=None)


class Request:
    """What a web framework keeps in a context variable."""


def test_asyncio_the_heartbeat_does_not_keep_the_context_of_a_caller(
    syncguard_redis: RedisServer,
) -> None:
    async def handle(backend: AsyncRedisBackend) -> weakref.ref[Request]:
        of_this_task = Request()
        request.set(of_this_task)
        async with aio.lock(backend, "a", ttl_ms=TTL_MS, auto_extend=True) as held:
            await wait_until_extended_async(held)
        return weakref.ref(of_this_task)

    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            await backend.is_locked("k")  # its own connection keeps the context that opened it
            first = await asyncio.create_task(handle(backend))
            # So long that it outlives some garbage collections on a busy machine.
            async with aio.lock(backend, "b", ttl_ms=12_000, auto_extend=True) as held:
                await wait_until_extended_async(held)
                # asyncio keeps cancelled timers, such as time-outs of calls, until they are due.
                await wait_until_async(lambda: gc.collect() >= 0 and first() is None)
                assert not held.lost

    asyncio.run(main())


@pytest.mark.parametrize("is_async", [False, True])
def test_asyncio_on_lost_runs_in_the_context_of_its_own_lock(
    syncguard_redis: RedisServer, is_async: bool
) -> None:
    seen: dict[object, object] = {}

    async def hold(backend: AsyncRedisBackend, name: str) -> None:
        async def tell_async() -> None:
            seen[name] = request.get()

        def tell() -> None:
            seen[name] = request.get()

        request.set(name)
        with pytest.raises(LockLost):
            async with aio.lock(
                backend,
                name,
                ttl_ms=3_000,
                auto_extend=True,
                on_lost=tell_async if is_async else tell,
            ) as held:
                await backend.release(held.lock_id)
                await wait_until_async(lambda: name in seen)

    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            await asyncio.gather(*(hold(backend, name) for name in ("a", "b")))

    asyncio.run(main())
    assert seen == {"a": "a", "b": "b"}


def test_asyncio_an_on_lost_that_exits_does_not_end_the_heartbeat(
    syncguard_redis: RedisServer,
) -> None:
    """The loop raises SystemExit. Whoever goes on with the loop keeps the other locks."""

    def leave() -> None:
        raise SystemExit

    loop = asyncio.new_event_loop()
    try:
        backend = AsyncRedisBackend.from_url(syncguard_redis.url)
        alive = aio.lock(backend, "alive", ttl_ms=TTL_MS, auto_extend=True)
        held = loop.run_until_complete(alive.__aenter__())
        dying = aio.lock(backend, "dying", ttl_ms=TTL_MS, auto_extend=True, on_lost=leave)
        lost = loop.run_until_complete(dying.__aenter__())
        loop.run_until_complete(backend.release(lost.lock_id))
        with pytest.raises(SystemExit):
            loop.run_forever()
        loop.run_until_complete(wait_until_extended_async(held))
        loop.run_until_complete(alive.__aexit__(None, None, None))
        with pytest.raises(LockLost):
            loop.run_until_complete(dying.__aexit__(None, None, None))
        loop.run_until_complete(backend.aclose())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_asyncio_a_channel_can_be_closed_from_the_loop_of_another_thread(
    syncguard_redis: RedisServer,
) -> None:
    def connections() -> int:
        return len([c for c in observer.client_list() if c["name"] == "two-loops"])

    async def use(backend: AsyncRedisBackend) -> object:
        channel = await backend.open_extend_channel(20_000)
        assert channel is not None
        assert await channel.extend([(generate_lock_id(), 1_000)]) == [ExtendResult(False)]
        return channel

    other = asyncio.new_event_loop()
    other.set_debug(True)  # asyncio then refuses calls from another thread
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    with syncguard_redis.client() as observer:
        backend = AsyncRedisBackend.from_url(f"{syncguard_redis.url}?client_name=two-loops")
        channel = asyncio.run_coroutine_threadsafe(use(backend), other).result(20)
        assert connections() == 1
        asyncio.run(channel.close_if_idle())  # type: ignore[attr-defined]
        wait_until(lambda: connections() == 0)
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()
        asyncio.run(channel.close_if_idle())  # type: ignore[attr-defined]


def test_asyncio_an_unexpected_error_does_not_end_the_heartbeat(
    syncguard_redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send_waiting, failures = heartbeat_async.AsyncHeartbeat._send_waiting, [ZeroDivisionError()]

    def fail_once(
        self: heartbeat_async.AsyncHeartbeat, connection: heartbeat_async.AsyncBackendConnection
    ) -> None:
        if failures:
            raise failures.pop()
        send_waiting(self, connection)

    async def main() -> None:
        monkeypatch.setattr(heartbeat_async.AsyncHeartbeat, "_send_waiting", fail_once)
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=15_000, auto_extend=True) as held:
                beat_now_async(held, backend)
                await wait_until_extended_async(held)

    asyncio.run(main())
    assert "Unexpected error in the heartbeat of an event loop; continuing." in caplog.text


def test_an_answer_that_has_arrived_does_not_take_too_long() -> None:
    """The timer may run after the answer arrived, and before the task that awaited it has ended."""
    connection = heartbeat_async.AsyncBackendConnection(AsyncRedisBackend.from_url("redis://x"))
    connection.sent_at_ms = holder_clock_ms() - 1_000_000
    assert connection.stalls_at_ms() > holder_clock_ms()


class RecordingChannel:
    is_closed = False

    async def extend(self, _extensions: object) -> list[ExtendResult | LockError]:
        raise AssertionError("the loop has ended")

    async def close(self) -> None:
        self.is_closed = True


class ConnectsAlthoughCancelled(AsyncMemoryBackend):
    """As redis-py does, which sometimes swallows a cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.connects = asyncio.Event()
        self.channel = RecordingChannel()

    async def open_extend_channel(self, _timeout_ms: float) -> RecordingChannel:
        self.connects.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return self.channel


def test_asyncio_a_connection_that_opens_while_the_loop_ends_is_closed() -> None:
    async def main() -> RecordingChannel:
        backend = ConnectsAlthoughCancelled()
        async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True):
            await backend.connects.wait()
        return backend.channel

    assert asyncio.run(main()).is_closed
