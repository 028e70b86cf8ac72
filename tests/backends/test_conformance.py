"""The conformance suite with test backends: in a dictionary, and with the required parts only."""

from __future__ import annotations

import pytest
from bare_backend import BareBackend
from dict_backend import DictBackend, Store
from dict_backend_async import AsyncDictBackend

from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread


class InDict(LockBackendConformance):
    @pytest.fixture
    def store(self):
        return Store()

    @pytest.fixture
    def outage(self, store):
        def go_down():
            store.is_down = True

        return go_down


class TestBlocking(InDict):
    @pytest.fixture
    def make_backend(self, store):
        return lambda **options: DictBackend(store, **options)


class TestAsyncio(InDict):
    @pytest.fixture
    def make_backend(self, store):
        with LoopThread() as loop:
            yield lambda **options: BlockingFacade(AsyncDictBackend(store, **options), loop)


class TestRequiredPartsOnly(InDict):
    @pytest.fixture
    def make_backend(self, store):
        return lambda **options: BareBackend(store, **options)
