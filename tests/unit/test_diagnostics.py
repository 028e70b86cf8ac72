"""The functions that look up locks: the same for blocking and asyncio, over fakeredis."""

from __future__ import annotations

import asyncio
import threading

import fakeredis
import pytest

import syncguard
from syncguard import LockError, LockInfo, LockInfoDebug, aio
from syncguard.redis import AsyncRedisBackend, RedisBackend

HELPERS = ["get_by_key", "get_by_id", "get_by_key_raw", "get_by_id_raw", "owns"]


@pytest.fixture
def server():
    return fakeredis.FakeServer()


@pytest.fixture
def backend(server):
    return RedisBackend(fakeredis.FakeRedis(server=server))


@pytest.fixture
def lock(backend):
    return backend.acquire("k", 60_000)


def subject(helper, lock):
    return lock.key if "key" in helper else lock.lock_id


def run_async(server, helper, *arguments, **options):
    async def run():
        client = fakeredis.FakeAsyncRedis(server=server)
        try:
            return await getattr(aio, helper)(AsyncRedisBackend(client), *arguments, **options)
        finally:
            await client.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("helper", HELPERS)
def test_the_asyncio_function_returns_the_same_as_the_blocking_one(server, backend, lock, helper):
    blocking = getattr(syncguard, helper)(backend, subject(helper, lock))
    assert blocking
    assert run_async(server, helper, subject(helper, lock)) == blocking


@pytest.mark.parametrize("helper", HELPERS)
def test_every_lookup_function_can_be_aborted(server, backend, lock, helper):
    signal = threading.Event()
    signal.set()
    for run in (
        lambda: getattr(syncguard, helper)(backend, subject(helper, lock), signal=signal),
        lambda: run_async(server, helper, subject(helper, lock), signal=signal),
    ):
        with pytest.raises(LockError) as caught:
            run()
        assert caught.value.code == "Aborted"


@pytest.mark.parametrize("helper", ["get_by_key", "get_by_id"])
def test_a_function_without_raw_in_its_name_returns_no_raw_identifier(backend, lock, helper):
    assert type(getattr(syncguard, helper)(backend, subject(helper, lock))) is LockInfo


@pytest.mark.parametrize("helper", ["get_by_key_raw", "get_by_id_raw"])
def test_the_raw_record_has_the_identifiers_but_does_not_print_them(backend, lock, helper):
    raw = getattr(syncguard, helper)(backend, subject(helper, lock))
    assert type(raw) is LockInfoDebug
    assert (raw.key, raw.lock_id) == ("k", lock.lock_id)
    assert lock.lock_id not in repr(raw)


@pytest.mark.parametrize("helper", HELPERS)
def test_bad_input_is_refused(server, backend, helper):
    for run in (
        lambda: getattr(syncguard, helper)(backend, None),
        lambda: run_async(server, helper, None),
    ):
        with pytest.raises(LockError) as caught:
            run()
        assert caught.value.code == "InvalidArgument"
