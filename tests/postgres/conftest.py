"""PostgreSQL backends with one blocking interface, and a connection that reads their tables."""

from __future__ import annotations

import threading

import pytest
from pgbouncer import PgBouncer, PgBouncerUnavailableError
from relay import Relay, Silence

from syncguard.postgres import AsyncPostgresBackend, PostgresBackend
from syncguard.testing import BlockingFacade, LoopThread


@pytest.fixture
def sql(syncguard_postgres):
    """Run a statement on a separate connection, and return the rows."""
    with syncguard_postgres.connect() as connection:

        def run(statement, params=None):
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture(params=["blocking", "asyncio"])
def backend_at(request):
    """Makes a backend for a URL."""
    made = []
    if request.param == "blocking":

        def make(url, **options):
            made.append(PostgresBackend.from_url(url, **options))
            return made[-1]

        yield make
        for backend in made:
            backend.close()
        return
    with LoopThread() as loop:

        def make_async(url, **options):
            made.append(BlockingFacade(AsyncPostgresBackend.from_url(url, **options), loop))
            return made[-1]

        yield make_async
        for backend in made:
            backend.close()


@pytest.fixture
def make_backend(backend_at, syncguard_postgres):
    return lambda **options: backend_at(syncguard_postgres.url, **options)


@pytest.fixture
def backend(make_backend):
    return make_backend()


@pytest.fixture
def blocking(syncguard_postgres):
    """One blocking backend, for what does not differ in asyncio."""
    with PostgresBackend.from_url(syncguard_postgres.url) as backend:
        yield backend


@pytest.fixture(scope="session")
def session_pgbouncer(syncguard_postgres_server):
    try:
        with PgBouncer(syncguard_postgres_server) as bouncer:
            yield bouncer
    except PgBouncerUnavailableError as why:
        pytest.skip(f"not tested with PgBouncer: {why}")


@pytest.fixture
def pgbouncer(session_pgbouncer, syncguard_postgres):  # noqa: ARG001 - running, with tables
    """A PgBouncer in transaction mode before the session's PostgreSQL. A test may kill it."""
    session_pgbouncer.restart_if_killed()
    return session_pgbouncer


class FaultyRelay(Relay):
    """A relay that counts requests, and can cut the connection or swallow all replies."""

    def __init__(self, server):
        super().__init__(server.port)
        self.url = f"postgresql://{server.user}@127.0.0.1:{self.port}/{server.database}"
        self.requests = 0
        self.is_mute = False
        self._cut = threading.Event()
        self.was_cut = threading.Event()

    def cut_next_reply(self):
        """Close the connection instead of passing the next reply on."""
        self._cut.set()

    def cut_connections(self):
        """Close all connections, whatever is under way."""
        self._end(list(self._sockets))

    def request(self, data):
        self.requests += 1
        return data

    def reply(self, data):
        if self._cut.is_set():
            self._cut.clear()
            self.was_cut.set()
            return None
        return Silence() if self.is_mute else data


@pytest.fixture
def relay(syncguard_postgres):
    with FaultyRelay(syncguard_postgres) as relay:
        yield relay
