"""An asyncio task that is cancelled at any await leaves no lock held."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from wait_until import wait_until_async

from syncguard import Acquisition, LockError, aio
from syncguard.redis import AsyncRedisBackend
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer


@asynccontextmanager
async def backend_on(server: RedisServer) -> AsyncIterator[AsyncRedisBackend]:
    async with AsyncRedisBackend.from_url(server.url) as backend:
        yield backend


async def cancelled_at_every_point(
    operation: Callable[[], Awaitable[object]], check: Callable[[], Awaitable[None]]
) -> int:
    """Run the operation again and again, cancelling it one loop iteration later each time.

    Each await that suspends takes at least one iteration, so every await is covered. Stops at the
    first run that finishes before its cancellation. Returns the number of cancelled runs.
    """
    for iterations in range(10_000):
        task = asyncio.ensure_future(operation())
        for _ in range(iterations):
            await asyncio.sleep(0)
        finished_first = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await check()
        if finished_first:
            return iterations
    raise AssertionError("the operation never finished")


async def all_is_undone() -> None:
    """Wait until the undo thread has released what a cancelled task may have acquired."""
    await wait_until_async(lambda: undo_thread.pending == 0)


async def all_other_tasks_are_done() -> None:
    """Wait until no other task runs. A task that ends may start another in its callback."""
    deadline = time.monotonic() + 20
    rounds_without = 0
    while rounds_without < 5:
        assert time.monotonic() < deadline
        rounds_without = 0 if asyncio.all_tasks() - {asyncio.current_task()} else rounds_without + 1
        await asyncio.sleep(0.005)


def test_a_cancelled_acquire_leaves_no_lock_behind(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with backend_on(syncguard_redis) as backend:

            async def acquire() -> None:
                result = await backend.acquire("k", ttl_ms=60_000)
                if result.ok:  # not cancelled
                    await backend.release(result.lock_id)

            async def is_free() -> None:
                await all_is_undone()
                assert await backend.count_live_locks() == 0
                assert not await backend.is_locked("k")

            assert await cancelled_at_every_point(acquire, is_free) > 3

    asyncio.run(main())


def test_a_cancelled_call_leaks_no_connection(syncguard_redis: RedisServer) -> None:
    """Else cancellations would exhaust the connection pool of the process."""

    async def main() -> None:
        async with backend_on(syncguard_redis) as backend:
            pool = backend._client.connection_pool

            async def ask() -> None:
                await backend.is_locked("k")

            async def only_the_kept_connection_is_out() -> None:
                await all_other_tasks_are_done()
                assert len(pool._in_use_connections) <= 1

            await ask()
            assert await cancelled_at_every_point(ask, only_the_kept_connection_is_out) > 1

    asyncio.run(main())


def test_a_cancelled_release_still_releases(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with backend_on(syncguard_redis) as backend:
            lock_ids: list[str] = []
            still_held = 0

            async def acquire_the_next() -> None:
                result = await backend.acquire("k", ttl_ms=60_000)
                assert result.ok
                lock_ids.append(result.lock_id)

            async def release() -> None:
                await backend.release(lock_ids[-1])

            async def check() -> None:
                nonlocal still_held
                await all_is_undone()
                still_held += (await backend.release(lock_ids[-1])).ok
                await acquire_the_next()

            await acquire_the_next()
            assert await cancelled_at_every_point(release, check) > 2
            # One coroutine was cancelled before its first step, and did nothing. Every release
            # that had begun was completed.
            assert still_held == 1

    asyncio.run(main())


def test_a_cancelled_lock_block_leaves_no_lock_behind(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with backend_on(syncguard_redis) as backend:

            async def hold() -> None:
                async with aio.lock(backend, "k", ttl_ms=60_000):
                    await asyncio.sleep(0)

            async def is_free() -> None:
                await all_is_undone()
                assert await backend.count_live_locks() == 0

            assert await cancelled_at_every_point(hold, is_free) > 6

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_no_lock_behind_and_wakes_the_next(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> None:
        patient = Acquisition(timeout_ms=60_000)
        async with backend_on(syncguard_redis) as backend:

            async def wait() -> None:
                async with aio.lock(backend, "k", ttl_ms=60_000, acquisition=patient):
                    pass

            for iterations in range(0, 60, 3):
                holder = await backend.acquire("k", ttl_ms=60_000)
                assert holder.ok
                leaves, stays = (asyncio.ensure_future(wait()) for _ in range(2))
                await asyncio.sleep(0.02)
                await holder.release()
                for _ in range(iterations):
                    await asyncio.sleep(0)
                leaves.cancel()
                await asyncio.wait_for(stays, 20)
                await asyncio.gather(leaves, return_exceptions=True)
                await all_is_undone()
                assert await backend.count_live_locks() == 0

    asyncio.run(main())


def test_an_acquire_that_is_cancelled_while_redis_hangs_leaves_no_lock_behind(
    syncguard_redis: RedisServer,
) -> None:
    """The cancellation does not wait for Redis. The lock that Redis grants later is undone."""

    async def main() -> None:
        async with backend_on(syncguard_redis) as backend:
            result = await backend.acquire("warm up: loads the script", ttl_ms=60_000)
            assert result.ok
            before = syncguard_redis.commands_processed()["evalsha"]
            with syncguard_redis.paused():
                task = asyncio.ensure_future(backend.acquire("k", ttl_ms=60_000))
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, 20)
            await wait_until_async(
                lambda: syncguard_redis.commands_processed()["evalsha"] > before, 20
            )
            await all_is_undone()
            assert not await backend.is_locked("k")

    asyncio.run(main())


def test_when_the_loop_shuts_down_no_lock_is_left(syncguard_redis: RedisServer) -> None:
    """At its end asyncio.run cancels every task at once, those of SyncGuard too."""

    async def acquire_in_the_background(server: RedisServer) -> None:
        backend = AsyncRedisBackend.from_url(server.url)
        await backend.is_locked("warm")
        server.pause()  # else the tasks may end before they are cancelled
        tasks = [asyncio.ensure_future(backend.acquire(f"k{n}", ttl_ms=60_000)) for n in range(5)]

        async def close_at_the_end() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.gather(*tasks, return_exceptions=True)
                await backend.aclose()

        closing.append(asyncio.ensure_future(close_at_the_end()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    closing: list[asyncio.Future[None]] = []

    async def count(server: RedisServer) -> int:
        async with backend_on(server) as backend:
            return await backend.count_live_locks()

    try:
        asyncio.run(acquire_in_the_background(syncguard_redis))
    finally:
        syncguard_redis.resume()
    asyncio.run(all_is_undone())
    assert asyncio.run(count(syncguard_redis)) == 0


def test_an_abort_signal_ends_the_waiting_of_an_asyncio_lock(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        signal = asyncio.Event()
        async with backend_on(syncguard_redis) as backend:
            async with aio.lock(backend, "k", ttl_ms=60_000):
                waiting = asyncio.ensure_future(
                    aio.lock(
                        backend,
                        "k",
                        signal=signal,
                        acquisition=Acquisition(timeout_ms=60_000, retry_delay_ms=30_000),
                    ).__aenter__()
                )
                await asyncio.sleep(0.05)
                signal.set()
                with pytest.raises(LockError) as caught:
                    await asyncio.wait_for(waiting, 20)
                assert caught.value.code == "Aborted"

    asyncio.run(main())
