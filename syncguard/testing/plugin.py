"""Pytest fixtures: a real Redis, and a SyncGuard backend on it. Also ignores ShortTTLWarning.

Pytest loads this module in every session where SyncGuard is installed. So the fixtures import the
drivers and backends that they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from syncguard.testing.redis_server import RedisServer

if TYPE_CHECKING:
    from syncguard.redis import RedisBackend


def pytest_configure(config: pytest.Config) -> None:
    # Tests use short TTLs on purpose. This line is the last of the ini file, so it overrides
    # "error". The option -W and the mark filterwarnings override this line.
    config.addinivalue_line("filterwarnings", "ignore::syncguard.ShortTTLWarning")


@pytest.fixture(scope="session")
def syncguard_redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole session (one per worker under pytest-xdist). Keeps its data."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def syncguard_redis(syncguard_redis_server: RedisServer) -> RedisServer:
    """The session's Redis, running and empty at the start of each test.

    A test may kill or pause it. A test that changes its configuration should start its own
    ``RedisServer``.
    """
    server = syncguard_redis_server
    if not server.is_running:
        server.restart()
    server.resume()
    with server.client() as client:
        client.flushall()
    return server


@pytest.fixture
def syncguard_backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    """A blocking ``RedisBackend`` with the default prefix on an empty Redis."""
    from syncguard.redis import RedisBackend

    with syncguard_redis.client() as client:
        backend = RedisBackend(client)
        try:
            yield backend
        finally:
            backend.close()
