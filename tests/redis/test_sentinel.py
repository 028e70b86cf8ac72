"""Redis with Sentinel: a backend connects to the new master, which still has the locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from sentinel_servers import NAME, NEVER_DOWN, SentinelServers
from wait_until import wait_until

from syncguard import LockError, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport.runner_async import PipelinedRunner
from syncguard.redis.undo_thread import undo_thread

pytestmark = pytest.mark.slow


def answers(backend: RedisBackend) -> bool:
    with contextlib.suppress(LockError):
        backend.is_locked("k")
        return True
    return False


@pytest.fixture
def watched() -> Iterator[SentinelServers]:
    with SentinelServers(down_after_ms=NEVER_DOWN) as servers:
        yield servers


@contextlib.contextmanager
def backend_of(watched: SentinelServers) -> Iterator[RedisBackend]:
    with watched.sentinel.master_for(NAME) as client, RedisBackend(client) as backend:
        yield backend


def test_a_replicated_lock_is_still_held_after_a_failover(watched: SentinelServers) -> None:
    with backend_of(watched) as backend:
        held = backend.acquire("k", ttl_ms=600_000)
        assert held.ok
        wait_until(watched.is_in_sync)
        watched.kill_master()
        wait_until(lambda: answers(backend), 60)
        assert not backend.acquire("k").ok, "the new master knows who holds it"
        assert backend.release(held.lock_id).ok
        again = backend.acquire("k")
        assert again.ok
        assert again.fence > held.fence


def test_a_heartbeat_finds_the_new_master(watched: SentinelServers) -> None:
    with backend_of(watched) as backend, lock(backend, "k", 30_000, auto_extend=True) as held:
        wait_until(watched.is_in_sync)
        watched.kill_master()
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before, 60)
        held.ensure_held()


def test_an_asyncio_backend_follows_a_failover_too(watched: SentinelServers) -> None:
    async def main() -> None:
        sentinel = AsyncSentinel([watched.address])
        async with (
            sentinel.sentinels[0],
            sentinel.master_for(NAME) as client,
            AsyncRedisBackend(client) as backend,
        ):
            assert isinstance(backend._runner, PipelinedRunner)
            async with aio.lock(backend, "k", 30_000, auto_extend=True) as held:
                await asyncio.to_thread(wait_until, watched.is_in_sync)
                await asyncio.to_thread(watched.kill_master)
                before = held.expires_at_ms
                await asyncio.to_thread(wait_until, lambda: held.expires_at_ms > before, 60)
            assert await backend.is_locked("k") is False

    asyncio.run(main())


def test_an_asyncio_request_that_got_no_reply_is_undone_on_the_master(
    watched: SentinelServers,
) -> None:
    async def main() -> None:
        sentinel = AsyncSentinel([watched.address])
        async with (
            sentinel.sentinels[0],
            sentinel.master_for(NAME) as client,
            AsyncRedisBackend(client) as backend,
        ):
            held = await backend.acquire("k", 600_000)
            assert held.ok
            backend._undo(held.lock_id)
            await asyncio.to_thread(wait_until, lambda: undo_thread.pending == 0)
            assert not await backend.is_locked("k")

    asyncio.run(main())


def test_a_request_that_got_no_reply_is_undone_on_the_master(watched: SentinelServers) -> None:
    with backend_of(watched) as backend:
        held = backend.acquire("k", 600_000)
        assert held.ok
        backend.undo(held.lock_id)
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")
