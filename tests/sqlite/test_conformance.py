"""The conformance suite with locks in a SQLite file, blocking and asyncio."""

from __future__ import annotations

import shutil

import pytest

from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread


class OnFile(LockBackendConformance):
    @pytest.fixture
    def outage(self, path):
        return lambda: shutil.rmtree(path.parent)

    @pytest.fixture
    def make_blocking(self, path):
        made = []

        def make(**options):
            made.append(SQLiteBackend(path, **options))
            return made[-1]

        yield make
        for backend in made:
            backend.close()

    @pytest.fixture
    def make_async(self, path):
        with LoopThread() as loop:
            made = []

            def make(**options):
                made.append(AsyncSQLiteBackend(path, **options))
                return BlockingFacade(made[-1], loop)

            yield make
            for backend in made:
                loop.run(backend.aclose())


class TestBlocking(OnFile):
    @pytest.fixture
    def make_backend(self, make_blocking):
        return make_blocking


class TestAsyncio(OnFile):
    @pytest.fixture
    def make_backend(self, make_async):
        return make_async
