"""A block that ended in time did not lose its lock, however long its release takes.

A relay holds the release back. Meanwhile the lock expires: its keys are deleted, and the deadline
is moved into the past. So no test has to wait for a TTL.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from clients import backend_on
from redis.backoff import NoBackoff
from redis.retry import Retry
from relay import Relay
from short_time_out import short_time_out
from wait_until import wait_until

from syncguard import Held, LockLost, aio, lock
from syncguard.clock import holder_clock_ms
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.scripts import RELEASE
from syncguard.testing import RedisServer

TTL_MS = 60_000


class SlowRelease(Relay):
    """Calls ``expire`` before it forwards a release; with ``answers=False`` drops the reply."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.expire: Callable[[], object] = lambda: None
        self.answers = True
        self.arrived = threading.Event()

    def request(self, data: bytes) -> bytes | None:
        if RELEASE.sha.encode() not in data:
            return data
        self.arrived.set()
        self.expire()
        return data if self.answers else b""


@pytest.fixture
def relay(syncguard_redis: RedisServer) -> Iterator[SlowRelease]:
    with SlowRelease(syncguard_redis.port) as relay:
        yield relay


def expiry_of(held: Held, observer: redis.Redis) -> Callable[[], None]:
    def expire() -> None:
        observer.flushdb()
        held.deadline_ms = holder_clock_ms() - 1

    return expire


def test_a_lock_that_expires_during_its_release_was_not_lost(
    relay: SlowRelease, observer: redis.Redis
) -> None:
    told: list[Held] = []
    with backend_on(relay.port) as backend:
        warm_up(backend)
        with lock(backend, "k", ttl_ms=TTL_MS, on_lost=told.append) as held:
            relay.expire = expiry_of(held, observer)
        assert relay.arrived.is_set()
        assert not held.lost
    assert not told


def test_a_lock_that_is_gone_before_its_ttl_has_ended_was_lost(
    relay: SlowRelease, observer: redis.Redis
) -> None:
    told: list[Held] = []
    with backend_on(relay.port) as backend:
        warm_up(backend)
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=TTL_MS, on_lost=told.append) as held:
                relay.expire = observer.flushdb
        assert held.lost
        wait_until(lambda: told == [held])


def test_a_release_that_gets_no_answer_before_the_ttl_ends_is_no_loss(
    relay: SlowRelease, observer: redis.Redis
) -> None:
    errors: list[str] = []
    with backend_on(relay.port, retry=Retry(NoBackoff(), 0)) as backend, ExitStack() as stack:
        warm_up(backend)
        relay.answers = False
        with lock(
            backend,
            "k",
            ttl_ms=TTL_MS,
            on_release_error=lambda error, _context: errors.append(error.code),
        ) as held:
            relay.expire = expiry_of(held, observer)
            stack.enter_context(short_time_out(backend))
        assert errors == ["NetworkTimeout"]
        assert not held.lost


@pytest.mark.parametrize("max_connections", [None, 8], ids=["large pool", "small pool"])
def test_a_release_that_goes_on_after_close_leaves_no_connection(
    relay: SlowRelease, observer: redis.Redis, max_connections: int | None
) -> None:
    with backend_on(relay.port) as other:
        warm_up(other)  # Redis has the script: the first request frees the lock
    go_on = threading.Event()
    relay.expire = go_on.wait
    errors: list[str] = []
    backend = RedisBackend.from_url(
        f"redis://127.0.0.1:{relay.port}?client_name=closed",
        dispose_timeout_ms=100,
        max_connections=max_connections,
        on_release_error=lambda error, _context: errors.append(error.code),
    )
    with backend, backend.acquire("k", ttl_ms=TTL_MS):
        pass
    assert errors == ["NetworkTimeout"]
    assert observer.exists("syncguard:k")
    go_on.set()
    wait_until(lambda: not observer.exists("syncguard:k"))
    wait_until(lambda: "closed" not in [each["name"] for each in observer.client_list()])


def test_asyncio_a_lock_that_expires_during_its_release_was_not_lost(
    relay: SlowRelease, observer: redis.Redis
) -> None:
    told: list[Held] = []

    async def main() -> None:
        url = f"redis://127.0.0.1:{relay.port}"
        async with AsyncRedisBackend.from_url(url) as backend:
            async with aio.lock(backend, "warm"):
                pass
            async with aio.lock(backend, "k", ttl_ms=TTL_MS, on_lost=told.append) as held:
                relay.expire = expiry_of(held, observer)
            assert relay.arrived.is_set()
            assert not held.lost

    asyncio.run(main())
    assert not told


def warm_up(backend: object) -> None:
    """Load the scripts, so that the relay knows a release by its hash."""
    with lock(backend, "warm"):  # type: ignore[arg-type]
        pass
