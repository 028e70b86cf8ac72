"""Fixtures of the fault tests: a backend on the shared Redis, and servers to break."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import redis
from clients import backend_on
from cluster_servers import ClusterServers

from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with backend_on(syncguard_redis.port) as backend:
        yield backend


@pytest.fixture
def observer(syncguard_redis: RedisServer) -> Iterator[redis.Redis]:
    """A separate client on the shared Redis."""
    with syncguard_redis.client() as client:
        yield client


@pytest.fixture
def frail_redis() -> Iterator[RedisServer]:
    """A Redis for this test only, to be paused and killed."""
    with RedisServer(aof=True) as server:
        yield server


@pytest.fixture
def silent_address() -> Iterator[tuple[str, int]]:
    """The address of a server that accepts no connection: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()


@pytest.fixture(scope="module")
def three() -> Iterator[ClusterServers]:
    """A cluster of three masters."""
    with ClusterServers(masters=3) as servers:
        yield servers


@pytest.fixture(scope="module")
def replicated() -> Iterator[ClusterServers]:
    """A cluster whose main master has a replica."""
    with ClusterServers(with_replica=True) as servers:
        yield servers
