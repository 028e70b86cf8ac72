"""Optional parts: whether a backend offers one, also with telemetry, and the error if not."""

from __future__ import annotations

import asyncio
import time

import pytest
from bare_backend import BareBackend
from dict_backend import DictBackend, Store
from dict_backend_async import AsyncDictBackend

from syncguard import InvalidArgument, aio, lock, with_telemetry
from syncguard.backend import (
    AsyncLockable,
    GivenLocation,
    ListsLocks,
    OpensExtendChannel,
    ReportsHealth,
    SettingProblem,
    Wakeable,
    offers,
)
from syncguard.backends import read_location
from syncguard.dotted_path import import_dotted
from syncguard.redis import AsyncRedisBackend, RedisBackend, inspect_server


def ignore(_event):
    """A callback of telemetry."""


@pytest.mark.parametrize("wrap", [lambda b: b, lambda b: with_telemetry(b, ignore)])
def test_a_part_is_offered_by_having_its_methods_also_behind_telemetry(wrap):
    listed, bare = wrap(DictBackend(Store())), wrap(BareBackend(Store()))
    for part in (ListsLocks, ReportsHealth):
        assert offers(listed, part)
        assert not offers(bare, part)
    for part in (Wakeable, OpensExtendChannel):
        assert not offers(listed, part)


def test_redis_offers_every_part():
    with RedisBackend.from_url("redis://localhost") as backend:
        for part in (ListsLocks, ReportsHealth, Wakeable, OpensExtendChannel):
            assert offers(backend, part)


def test_telemetry_delegates_listing_and_health():
    backend = with_telemetry(DictBackend(Store()), ignore)
    with lock(backend, "k"):
        assert [info.key for info in backend.page_raw().locks] == ["k"]
        assert [info.key for info in backend.find_raw(lambda _info: True)] == ["k"]
        assert backend.health().fields == {"liveLocks": 1}


def test_telemetry_on_a_backend_without_a_part_says_so():
    backend = with_telemetry(BareBackend(Store()), ignore)
    for operation in (backend.live_locks, backend.count_live_locks, backend.page_raw):
        with pytest.raises(InvalidArgument, match="BareBackend does not list its locks"):
            operation()
    with pytest.raises(InvalidArgument, match="BareBackend does not report its health"):
        backend.health()


def test_asyncio_telemetry_delegates_the_listing_or_raises_if_there_is_none():
    class Bare(AsyncLockable):
        hash = None

        async def acquire(self): ...

    async def main():
        backend = aio.with_telemetry(AsyncDictBackend(Store()), ignore)
        async with backend.lock("k"):
            assert (await backend.page_raw()).total == 1
            assert len(await backend.find_raw(lambda _info: True)) == 1
        with pytest.raises(InvalidArgument, match="Bare does not list its locks"):
            await aio.with_telemetry(Bare(), ignore).live_locks()

    asyncio.run(main())


def test_a_heartbeat_extends_a_lock_of_a_backend_without_a_channel():
    backend = DictBackend(Store())
    with lock(backend, "k", ttl_ms=12_000, auto_extend=True) as held:
        first = held.expires_at_ms
        while held.expires_at_ms == first:
            held.ensure_held()
            time.sleep(0.01)


def test_a_class_without_read_location_accepts_only_a_url():
    for given in (GivenLocation("shop"), GivenLocation(7), GivenLocation()):
        assert read_location(BareBackend, given) == SettingProblem("LOCATION", "must be a URL")


def test_the_state_of_a_server_can_only_be_read_with_a_blocking_backend():
    with pytest.raises(InvalidArgument, match="blocking backend"):
        inspect_server(AsyncRedisBackend.from_url("redis://localhost"))


def test_a_path_without_a_dot_is_refused():
    with pytest.raises(ImportError):
        import_dotted("module")
