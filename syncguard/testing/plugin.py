"""Pytest fixtures: real servers, and a SyncGuard backend on Redis. Also ignores ShortTTLWarning.

Pytest loads this module in every session where SyncGuard is installed. So the fixtures import the
drivers and backends that they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from syncguard.testing.postgres_programs import PostgresUnavailableError
from syncguard.testing.postgres_server import PostgresServer
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


@pytest.fixture(scope="session")
def syncguard_postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole session. The test is skipped where none can be started."""
    try:
        server = PostgresServer()
        server.start()
    except PostgresUnavailableError as why:
        pytest.skip(f"not tested on PostgreSQL: {why}")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def syncguard_postgres(
    syncguard_postgres_server: PostgresServer, _postgres_schema: dict[str, object]
) -> Iterator[PostgresServer]:
    """The session's PostgreSQL, running, with the empty tables of SyncGuard.

    A test may kill it; it is started again after the test. A test that changes its configuration
    should start its own ``PostgresServer``.
    """
    from syncguard.postgres import PostgresBackend, Tables
    from syncguard.postgres.undo import drop_undos

    server = syncguard_postgres_server
    _make_sure_it_runs(server)
    tables = Tables()
    with server.connect() as connection:
        if connection.execute(_SCHEMA).fetchone() != _postgres_schema.get("now"):
            with PostgresBackend.from_url(server.url) as backend:
                backend.setup()
        connection.execute(f"TRUNCATE {tables.locks}, {tables.fences}")
        _postgres_schema["now"] = connection.execute(_SCHEMA).fetchone()
    yield server
    # Now, not before the next test: that may use the session's server without this fixture.
    drop_undos()
    _make_sure_it_runs(server)


def _make_sure_it_runs(server: PostgresServer) -> None:
    if not server.is_running:
        server.restart()


@pytest.fixture(scope="session")
def _postgres_schema() -> dict[str, object]:
    """What ``_SCHEMA`` gave at the last time. The setup takes longer than most tests."""
    return {}


_SCHEMA = """
SELECT md5(string_agg(version, ',' ORDER BY version)) FROM (
  SELECT concat_ws(' ', 'table', oid, xmin) AS version FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(' ', 'function', oid, xmin) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(' ', 'trigger', oid, xmin) FROM pg_trigger
) AS versions
"""
"""Another value after each change of a table, a function or a trigger."""
