"""The conformance suite with the PostgreSQL backends, blocking and asyncio, on a real server."""

from __future__ import annotations

import pytest

from syncguard.postgres import AsyncPostgresBackend, PostgresBackend
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread


class OnPostgres(LockBackendConformance):
    @pytest.fixture
    def outage(self, syncguard_postgres):
        return syncguard_postgres.kill

    @pytest.fixture
    def url(self, syncguard_postgres):
        return syncguard_postgres.url


class Blocking(OnPostgres):
    @pytest.fixture
    def make_backend(self, url):
        made = []

        def make(**options):
            made.append(PostgresBackend.from_url(url, **options))
            return made[-1]

        yield make
        for backend in made:
            backend.close()


class Asyncio(OnPostgres):
    @pytest.fixture
    def make_backend(self, url):
        made = []
        with LoopThread() as loop:

            def make(**options):
                made.append(BlockingFacade(AsyncPostgresBackend.from_url(url, **options), loop))
                return made[-1]

            yield make
            for backend in made:
                backend.close()


class TestBlocking(Blocking): ...


class TestAsyncio(Asyncio): ...


class BehindPgBouncer:
    """The same through PgBouncer in transaction mode."""

    @pytest.fixture
    def url(self, pgbouncer):
        return pgbouncer.url

    @pytest.fixture
    def outage(self, pgbouncer):
        return pgbouncer.kill


@pytest.mark.rounds
@pytest.mark.slow
class TestBehindPgBouncer(BehindPgBouncer, Blocking): ...


@pytest.mark.rounds
@pytest.mark.slow
class TestBehindPgBouncerAsyncio(BehindPgBouncer, Asyncio): ...
