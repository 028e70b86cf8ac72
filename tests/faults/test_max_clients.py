"""A Redis that has no connection left: held locks are extended on those that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from beat_now import extend_now, extend_now_async
from wait_until import wait_until, wait_until_async

from syncguard import LockError, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer


@pytest.fixture
def observer(frail_redis: RedisServer) -> Iterator[redis.Redis]:
    with frail_redis.client() as client:
        yield client


TTL_MS = 60_000
"""So long that no extension is due before the test says so."""


def connections(observer: redis.Redis) -> int:
    return len(observer.client_list())


def allow_no_more(observer: redis.Redis) -> None:
    observer.config_set("maxclients", connections(observer))


def test_the_server_is_at_its_limit_says_the_error(
    frail_redis: RedisServer, observer: redis.Redis
) -> None:
    allow_no_more(observer)
    with (
        RedisBackend.from_url(frail_redis.url) as backend,
        pytest.raises(LockError, match="at its limit") as caught,
    ):
        backend.acquire("k")
    assert caught.value.code == "RateLimited"


def test_a_lock_is_extended_without_a_connection_for_heartbeats(
    frail_redis: RedisServer, observer: redis.Redis
) -> None:
    with RedisBackend.from_url(frail_redis.url) as backend:
        ours = lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True)
        with ours as held:
            allow_no_more(observer)
            open_before = connections(observer)
            for _ in range(3):
                extend_now(ours, held)
            assert connections(observer) == open_before
            observer.config_set("maxclients", 1_000)
            extend_now(ours, held)
            wait_until(lambda: connections(observer) == open_before + 1)
        assert not held.lost


def test_asyncio_a_lock_is_extended_without_a_connection_for_heartbeats(
    frail_redis: RedisServer, observer: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(frail_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                allow_no_more(observer)
                open_before = connections(observer)
                for _ in range(3):
                    await extend_now_async(held, backend)
                assert connections(observer) == open_before
                observer.config_set("maxclients", 1_000)
                await extend_now_async(held, backend)
                await wait_until_async(lambda: connections(observer) == open_before + 1)
            assert not held.lost

    asyncio.run(main())
