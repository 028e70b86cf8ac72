"""Redis with Sentinel: a backend connects to the new master, which still has the locks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel
from wait_until import wait_until

from syncguard import LockError, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer
from syncguard.testing.redis_server_path import find_redis_server

pytestmark = pytest.mark.slow

WATCHED = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor ours 127.0.0.1 {master} 1
sentinel down-after-milliseconds ours 500
sentinel failover-timeout ours 5000
"""


def answers(backend: RedisBackend) -> bool:
    with contextlib.suppress(LockError):
        backend.is_locked("k")
        return True
    return False


class Watched:
    """A master, its replica, and the sentinel that watches both."""

    def __init__(self, master: RedisServer, replica: RedisServer, port: int) -> None:
        self.master = master
        self.replica = replica
        self.address = ("127.0.0.1", port)
        self.sentinel = Sentinel([self.address])

    @contextlib.contextmanager
    def backend(self) -> Iterator[RedisBackend]:
        with self.sentinel.master_for("ours") as client, RedisBackend(client) as backend:
            yield backend

    def is_in_sync(self) -> bool:
        with self.master.client() as client:
            info = client.info("replication")
            slave = info.get("slave0", {})
            return bool(slave) and slave["offset"] == info["master_repl_offset"]

    def fail_over(self) -> None:
        self.master.kill()
        wait_until(self._has_new_master)

    def knows_both(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return len(self.sentinel.discover_slaves("ours")) == 1
        return False

    def _has_new_master(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            port: int = self.sentinel.discover_master("ours")[1]
            return port == self.replica.port
        return False


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with RedisServer(config=["repl-diskless-sync-delay 0"]) as master, RedisServer() as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        with RedisServer() as spare:  # for a free port
            port = spare.port
        settings = tmp_path / "sentinel.conf"
        settings.write_text(WATCHED.format(port=port, folder=tmp_path, master=master.port))
        process = subprocess.Popen(
            [find_redis_server(), settings, "--sentinel"], stdout=subprocess.DEVNULL
        )
        try:
            watched = Watched(master, replica, port)
            wait_until(watched.knows_both)
            yield watched
            for client in watched.sentinel.sentinels:
                client.close()
        finally:
            process.kill()
            process.wait()


def test_a_replicated_lock_is_still_held_after_a_failover(watched: Watched) -> None:
    with watched.backend() as backend:
        held = backend.acquire("k", ttl_ms=60_000)
        assert held.ok
        wait_until(watched.is_in_sync)
        watched.fail_over()
        wait_until(lambda: answers(backend))
        assert not backend.acquire("k").ok, "the new master knows who holds it"
        assert backend.release(held.lock_id).ok
        again = backend.acquire("k")
        assert again.ok
        assert again.fence > held.fence


def test_a_heartbeat_finds_the_new_master(watched: Watched) -> None:
    with watched.backend() as backend, lock(backend, "k", 10_000, auto_extend=True) as held:
        wait_until(watched.is_in_sync)
        watched.fail_over()
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)
        held.ensure_held()


def test_an_asyncio_backend_follows_a_failover_too(watched: Watched) -> None:
    async def main() -> None:
        sentinel = AsyncSentinel([watched.address])
        async with (
            sentinel.sentinels[0],
            sentinel.master_for("ours") as client,
            AsyncRedisBackend(client) as backend,
        ):
            async with aio.lock(backend, "k", 10_000, auto_extend=True) as held:
                await asyncio.to_thread(wait_until, watched.is_in_sync)
                await asyncio.to_thread(watched.fail_over)
                before = held.expires_at_ms
                await asyncio.to_thread(wait_until, lambda: held.expires_at_ms > before)
            assert await backend.is_locked("k") is False

    asyncio.run(main())
