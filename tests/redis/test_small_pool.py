"""A pool of eight connections is the application's: eight commands of its own run at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from wait_until import wait_until

from syncguard import Aborted, Acquisition, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport.connections import take, take_async

EIGHT = 8
FAR = Acquisition(timeout_ms=100_000, retry_delay_ms=90_000, jitter="none")
"""A waiter that tries once, then waits for longer than the test takes."""


def has_room_for_eight(pool):
    """Whether the application can hold eight connections at once. It gives them back."""
    held = []
    try:
        with contextlib.suppress(RedisConnectionError):  # too many connections
            held.extend(take(pool) for _ in range(EIGHT))
        return len(held) == EIGHT
    finally:
        for connection in held:
            pool.release(connection)


async def has_room_for_eight_async(pool):
    held = []
    try:
        with contextlib.suppress(RedisConnectionError):
            for _ in range(EIGHT):
                held.append(await take_async(pool))
        return len(held) == EIGHT
    finally:
        for connection in held:
            await pool.release(connection)


def attempts(server):
    return server.commands_processed().get("evalsha", 0)


def test_after_a_call_all_eight_connections_are_the_applications(syncguard_redis):
    with syncguard_redis.client(max_connections=EIGHT) as client:
        assert RedisBackend(client).is_locked("k") is False
        assert has_room_for_eight(client.connection_pool)


def test_beside_a_waiter_all_eight_connections_are_the_applications(syncguard_redis):
    stop = threading.Event()
    with (
        syncguard_redis.client() as other,
        syncguard_redis.client(max_connections=EIGHT) as client,
        ThreadPoolExecutor() as threads,
    ):
        backend = RedisBackend(client)
        assert RedisBackend(other).acquire("k", 100_000).ok
        assert backend.is_locked("k")  # loads the scripts
        before = attempts(syncguard_redis)
        waiter = threads.submit(lock(backend, "k", acquisition=FAR, signal=stop).__enter__)
        try:
            wait_until(lambda: attempts(syncguard_redis) > before)
            # Not at once: the attempt itself used a connection.
            wait_until(lambda: has_room_for_eight(client.connection_pool))
            assert not waiter.done()
        finally:
            stop.set()
        with pytest.raises(Aborted):
            waiter.result(timeout=60)


def test_asyncio_leaves_all_eight_connections_to_the_application(syncguard_redis):
    async def room_beside_an_attempt(pool, before):
        while attempts(syncguard_redis) == before or not await has_room_for_eight_async(pool):
            await asyncio.sleep(0.01)

    async def main():
        async with redis.asyncio.Redis(port=syncguard_redis.port, max_connections=EIGHT) as client:
            backend = AsyncRedisBackend(client)
            assert (await backend.acquire("k", 100_000)).ok
            assert await has_room_for_eight_async(client.connection_pool)
            before = attempts(syncguard_redis)
            waiter = asyncio.create_task(aio.lock(backend, "k", acquisition=FAR).__aenter__())
            await asyncio.wait_for(room_beside_an_attempt(client.connection_pool, before), 60)
            assert not waiter.done()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter

    asyncio.run(main())
