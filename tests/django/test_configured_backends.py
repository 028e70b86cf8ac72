"""Aliases: one backend for the process, one for each event loop, and none left open."""

from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured

from syncguard import Acquisition, LockError
from syncguard.aio import AsyncLock
from syncguard.redis import RedisBackend
from syncguard_django import alock, alocks, lock, locks

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


def connections_of(server):
    with server.client() as client:
        return len([c for c in client.client_list() if c["id"] != str(client.client_id())])


def test_an_alias_has_one_backend(backend):
    assert locks["default"] is backend


def test_threads_share_the_backend_of_an_alias(configure):
    configure()
    start = threading.Barrier(8)
    seen = []

    def ask():
        start.wait()
        seen.append(locks["default"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(backend) for backend in seen}) == 1


def test_the_aliases_can_be_listed(settings):
    settings.SYNCGUARD = {"a": {"LOCATION": "redis://"}, "b": {"LOCATION": "?"}}
    assert list(locks) == list(alocks) == ["a", "b"]


def test_an_alias_that_does_not_exist_is_refused(configure):
    configure()
    with pytest.raises(ImproperlyConfigured, match="no alias 'other'"):
        locks["other"]


def test_a_backend_that_cannot_be_imported_is_refused(configure):
    configure(BACKEND="nowhere.Backend")
    with pytest.raises(ImproperlyConfigured, match=r"nowhere\.Backend cannot be imported"):
        locks["default"]


def test_a_value_that_only_the_backend_can_judge_is_refused_without_being_shown(configure):
    configure(OPTIONS={"db": "hunter2"})
    with pytest.raises(
        ImproperlyConfigured, match=r'SYNCGUARD\["default"\]: the client option'
    ) as e:
        locks["default"]
    assert "hunter2" not in str(e.value)


def test_the_timeouts_of_an_inspector_are_never_longer_than_those_of_the_alias(configure):
    configure(OPTIONS={"socket_timeout": 0.5})
    inspector = locks.inspector("default")
    assert locks.inspector("default") is inspector
    assert inspector._client.connection_pool.connection_kwargs["socket_timeout"] == 0.5


def test_changing_the_setting_closes_the_connections(configure, syncguard_redis):
    configure()
    locks["default"].is_locked("invoice:42")
    assert connections_of(syncguard_redis) == 1
    configure(KEY_PREFIX="changed")
    assert connections_of(syncguard_redis) == 0


def test_creating_a_backend_opens_no_connection(configure, syncguard_redis):
    configure()
    assert locks["default"]
    assert connections_of(syncguard_redis) == 0


def test_a_lock_uses_the_defaults_of_its_alias(configure, syncguard_redis):
    configure(TTL_MS=3_700_000, ACQUISITION={"max_retries": 0, "timeout_ms": 60_000})
    with lock("invoice:42"):
        with syncguard_redis.client() as client:
            assert 3_600_000 < client.pttl("testsite:invoice:42") <= 3_700_000
    with locks["default"].acquire("invoice:42"):
        with pytest.raises(LockError) as raised, lock("invoice:42"):
            pass
    assert raised.value.code == "AcquisitionTimeout"


def test_arguments_of_a_lock_override_the_defaults(configure, syncguard_redis):
    configure(TTL_MS=77_000)
    with lock("invoice:42", 50_000, holder="me"), syncguard_redis.client() as client:
        assert client.pttl("testsite:invoice:42") <= 50_000
        assert locks["default"].lookup(key="invoice:42").holder == "me"


def test_two_aliases_are_two_sets_of_locks(settings, syncguard_redis):
    settings.SYNCGUARD = {
        name: {"LOCATION": syncguard_redis.url, "KEY_PREFIX": name} for name in ("one", "two")
    }
    with lock("invoice:42", using="one"), lock("invoice:42", using="two", acquisition=AT_ONCE):
        assert locks["one"].is_locked("invoice:42")


def test_a_lock_on_a_backend_reports_its_class(backend):
    with lock("invoice:42") as held:
        assert held.fence == "000000000000001"
    assert not backend.is_locked("invoice:42")


# asyncio


async def hold_once():
    async with alock("invoice:42", holder="async") as held:
        assert await alocks["default"].is_locked("invoice:42")
        return held.fence


def test_alock_is_native_asyncio(configure):
    configure(TTL_MS=77_000)

    async def run():
        assert isinstance(alock("invoice:42"), AsyncLock)
        return await hold_once()

    assert asyncio.run(run()) == "000000000000001"
    assert not locks["default"].is_locked("invoice:42")


def test_outside_a_loop_there_is_no_asyncio_backend(configure):
    configure()
    with pytest.raises(RuntimeError, match="no running event loop"):
        alocks["default"]


def test_each_loop_has_its_own_backend_which_is_closed_when_the_loop_ends(
    configure, syncguard_redis
):
    configure()
    backends = []

    async def run():
        assert alocks["default"] is alocks["default"]
        backends.append(alocks["default"])
        await hold_once()
        assert connections_of(syncguard_redis) >= 1

    asyncio.run(run())
    assert connections_of(syncguard_redis) == 0
    asyncio.run(run())
    assert backends[0] is not backends[1]
    assert connections_of(syncguard_redis) == 0


def test_loops_in_two_threads_have_separate_backends(configure):
    configure()
    found = []

    def run():
        async def ask():
            found.append(alocks["default"])
            await asyncio.sleep(0)

        asyncio.run(ask())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]


def test_a_loop_that_was_closed_without_shutdown_is_forgotten(configure):
    configure()

    async def ask():
        return alocks["default"]

    rude = asyncio.new_event_loop()
    rude.run_until_complete(ask())
    rude.close()
    asyncio.run(ask())
    assert len(alocks._by_loop) == 0


def test_changing_the_setting_inside_a_loop_gives_a_new_backend_and_closes_both(
    configure, syncguard_redis
):
    configure()

    async def run():
        await hold_once()
        before = alocks["default"]
        configure(KEY_PREFIX="changed")
        assert alocks["default"] is not before
        assert alocks["default"].key_prefix == "changed"
        await hold_once()

    asyncio.run(run())
    assert connections_of(syncguard_redis) == 0


class WithoutAsyncClass(RedisBackend):
    """The asyncio class of its base class could use other locks, or use them differently."""


def test_a_backend_without_an_asyncio_class_is_refused(configure, monkeypatch):
    configure(BACKEND=f"{__name__}.WithoutAsyncClass")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(WithoutAsyncClass=WithoutAsyncClass))

    async def run():
        return alocks["default"]

    assert isinstance(locks["default"], WithoutAsyncClass)
    with pytest.raises(ImproperlyConfigured, match="WithoutAsyncClass names no asyncio twin"):
        asyncio.run(run())


def client_options(backend):
    return backend._client.connection_pool.connection_kwargs


def test_options_override_the_query_of_the_location(configure, syncguard_redis):
    address = f"{syncguard_redis.url}?socket_timeout=17&socket_connect_timeout=18&client_name=shop"
    configure(LOCATION=address, OPTIONS={"socket_timeout": 7})
    kept = client_options(locks["default"])
    assert kept["socket_timeout"] == 7
    assert kept["socket_connect_timeout"] == 18
    assert kept["client_name"] == "shop"
    assert not locks["default"].is_locked("k")


@pytest.mark.usefixtures("impatient_inspector")
def test_the_query_of_the_location_does_not_lengthen_the_timeouts_of_the_inspector(
    configure, syncguard_redis
):
    configure(LOCATION=f"{syncguard_redis.url}?socket_timeout=17&socket_connect_timeout=18")
    kept = client_options(locks.inspector("default"))
    assert kept["socket_timeout"] == kept["socket_connect_timeout"] == 2.0
