"""The conformance suite with locks in memory, blocking and asyncio."""

from __future__ import annotations

import pytest

from syncguard import aio, with_telemetry
from syncguard.backend import ErrorContext, LockError
from syncguard.memory import AsyncMemoryBackend, MemoryBackend, MemoryStore
from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread


class InMemory(LockBackendConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def outage(self, store, monkeypatch):
        """Memory never fails. What leaving a block does if a store fails is tested all the same."""

        def fail():
            cause = ConnectionError("the memory is gone")
            raise LockError("ServiceUnavailable", context=ErrorContext(cause=cause))

        return lambda: monkeypatch.setattr(store, "run", lambda _operation: fail())


class TestBlocking(InMemory):
    @pytest.fixture
    def make_backend(self, store):
        return lambda **options: MemoryBackend(store=store, **options)


class TestAsyncio(InMemory):
    @pytest.fixture
    def make_backend(self, store):
        with LoopThread() as loop:
            yield lambda **options: BlockingFacade(AsyncMemoryBackend(store=store, **options), loop)


class TestReporting(InMemory):
    """A backend with telemetry fulfils the contract too."""

    @pytest.fixture
    def make_backend(self, store):
        return lambda **options: with_telemetry(
            MemoryBackend(store=store, **options), on_event=print
        )


class TestReportingAsyncio(InMemory):
    @pytest.fixture
    def make_backend(self, store):
        with LoopThread() as loop:

            def make(**options):
                backend = AsyncMemoryBackend(store=store, **options)
                return BlockingFacade(aio.with_telemetry(backend, on_event=print), loop)

            yield make
