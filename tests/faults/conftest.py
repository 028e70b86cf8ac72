"""What the tests under fault share: a backend on the common Redis, and a Redis to break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with RedisBackend(redis.Redis(port=syncguard_redis.port)) as backend:
        yield backend


@pytest.fixture
def frail_redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be paused and killed."""
    with RedisServer(aof=True) as server:
        yield server
