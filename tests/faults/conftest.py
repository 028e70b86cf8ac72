"""What the tests under fault share: a backend on the common Redis, and a Redis to break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from clients import backend_on

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with backend_on(syncguard_redis.port) as backend:
        yield backend


@pytest.fixture
def observer(syncguard_redis: RedisServer) -> Iterator[redis.Redis]:
    """A client of the test's own on the common Redis."""
    with syncguard_redis.client() as client:
        yield client


@pytest.fixture
def frail_redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be paused and killed."""
    with RedisServer(aof=True) as server:
        yield server
