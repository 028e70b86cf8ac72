"""with_telemetry: one event for every operation, blocking and asyncio, over fakeredis."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import fakeredis
import pytest
from wait_until import wait_until

from syncguard import Acquisition, LockError, LockEvent, aio, hash_key, lock, with_telemetry
from syncguard._lock.callback_queue import CallbackQueue
from syncguard.keys import generate_lock_id
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.telemetry_events import Reporter
from syncguard.testing import BlockingFacade, LoopThread
from syncguard.types import ExtendResult

UNKNOWN = generate_lock_id()


@pytest.fixture
def server():
    return fakeredis.FakeServer()


@pytest.fixture(params=["blocking", "asyncio"])
def watched(request, server):
    """A function that creates a backend which reports to the given callback."""
    if request.param == "blocking":
        inner = RedisBackend(fakeredis.FakeRedis(server=server))
        yield lambda on_event, **options: with_telemetry(inner, on_event, **options)
        return

    with LoopThread() as loop:

        async def connect():
            return fakeredis.FakeAsyncRedis(server=server)

        def make(on_event, **options):
            inner = AsyncRedisBackend(loop.run(connect()))
            return BlockingFacade(aio.with_telemetry(inner, on_event, **options), loop)

        yield make


@pytest.fixture
def events():
    return []


@pytest.fixture
def backend(watched, events):
    return watched(events.append)


def plant_expired(server, key):
    """Store a lock that expired long ago, as after a jump of the clock."""
    record = {"lockId": "E" * 22, "key": key, "fence": "000000000000001"}
    record |= {"expiresAtMs": 1, "acquiredAtMs": 0}
    client = fakeredis.FakeRedis(server=server)
    client.set(f"syncguard:{key}", json.dumps(record))
    client.set(f"syncguard:id:{'E' * 22}", f"syncguard:{key}")
    return "E" * 22


def test_an_acquired_lock_is_reported_with_the_hashes_of_key_and_id(backend, events):
    result = backend.acquire("k", 60_000)
    assert events == [
        LockEvent("acquire", "ok", key_hash=hash_key("k"), lock_id_hash=hash_key(result.lock_id))
    ]


def test_contention_is_reported_as_locked(backend, events):
    backend.acquire("k", 60_000)
    backend.acquire("k", 60_000)
    assert events[1:] == [LockEvent("acquire", "fail", key_hash=hash_key("k"), reason="locked")]


@pytest.mark.parametrize("operation", ["release", "extend", "adopt"])
def test_a_successful_mutation_is_reported_without_a_reason(backend, events, operation):
    lock_id = backend.acquire("k", 60_000).lock_id
    getattr(backend, operation)(lock_id)
    [event] = events[1:]
    assert (event.type, event.result) == (operation.replace("adopt", "extend"), "ok")
    assert event.reason is None
    assert event.lock_id_hash


@pytest.mark.parametrize("operation", ["release", "extend", "adopt"])
def test_a_mutation_that_found_nothing_is_reported_as_not_found(backend, events, operation):
    getattr(backend, operation)(UNKNOWN)
    type_ = operation.replace("adopt", "extend")
    expected = LockEvent(type_, "fail", lock_id_hash=hash_key(UNKNOWN), reason="not-found")
    assert events == [expected]


@pytest.mark.parametrize("operation", ["release", "extend", "adopt"])
def test_a_mutation_that_saw_an_expired_lock_is_reported_as_expired(
    server, backend, events, operation
):
    getattr(backend, operation)(plant_expired(server, "k"))
    assert [event.reason for event in events] == ["expired"]


def test_is_locked_and_lookup_are_reported_without_a_reason(backend, events):
    backend.is_locked("k")
    backend.lookup(key="k")
    backend.lookup(lock_id=UNKNOWN)
    key_hash, id_hash = hash_key("k"), hash_key(UNKNOWN)
    assert events == [
        LockEvent("isLocked", "fail", key_hash=key_hash),
        LockEvent("lookup", "fail", key_hash=key_hash),
        LockEvent("lookup", "fail", lock_id_hash=id_hash),
    ]


def test_a_lock_that_is_found_is_reported_as_ok(backend, events):
    result = backend.acquire("k", 60_000)
    events.clear()
    backend.is_locked("k")
    backend.lookup(key="k")
    backend.lookup(lock_id=result.lock_id)
    backend.lookup_raw(key="k")
    assert [(event.type, event.result) for event in events] == [
        ("isLocked", "ok"),
        ("lookup", "ok"),
        ("lookup", "ok"),
        ("lookup", "ok"),
    ]


def test_a_forced_release_is_reported_as_a_release(backend, events):
    backend.acquire("k", 60_000)
    info = backend.lookup(key="k")
    events.clear()
    backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash)
    expected = LockEvent("release", "ok", key_hash=info.key_hash, lock_id_hash=info.lock_id_hash)
    assert events == [expected]


def test_a_forced_release_that_fails_is_reported_with_the_given_hashes(server, backend, events):
    server.connected = False
    with pytest.raises(LockError):
        backend.force_release("a", fence="0" * 15, lock_id_hash="b")
    assert events == [LockEvent("release", "fail", key_hash="a", lock_id_hash="b")]


def test_leaving_a_block_reports_the_release(backend, events):
    with backend.acquire("k", 60_000):
        pass
    assert [event.type for event in events] == ["acquire", "release"]


def test_the_release_of_an_adopted_lock_is_reported_too(backend, events):
    adopted = backend.adopt(backend.acquire("k", 60_000).lock_id, 60_000)
    events.clear()
    with adopted:
        pass
    [event] = events
    assert (event.type, event.result) == ("release", "ok")
    assert event.lock_id_hash == hash_key(adopted.lock_id)


def test_every_event_is_of_a_known_kind_with_a_known_result_and_reason(backend, events):
    lock_id = backend.acquire("k", 60_000).lock_id
    backend.acquire("k", 60_000)
    backend.extend(lock_id)
    lock_id = backend.adopt(lock_id).lock_id
    backend.is_locked("k")
    backend.lookup(key="k")
    backend.release(lock_id)
    backend.release(lock_id)
    types = {"acquire", "release", "extend", "isLocked", "lookup"}
    assert {event.type for event in events} == types
    assert {event.result for event in events} == {"ok", "fail"}
    assert {event.reason for event in events} == {None, "locked", "not-found"}


def test_faults_are_reported_and_raised(server, backend, events):
    server.connected = False
    for operation in (
        lambda: backend.acquire("k"),
        lambda: backend.release(UNKNOWN),
        lambda: backend.extend(UNKNOWN),
        lambda: backend.adopt(UNKNOWN),
        lambda: backend.is_locked("k"),
        lambda: backend.lookup(key="k"),
        lambda: backend.lookup_raw(key="k"),
        lambda: backend.force_release("a", fence="0" * 15, lock_id_hash="b"),
    ):
        with pytest.raises(LockError):
            operation()
    types = ["acquire", "release", "extend", "extend", "isLocked", "lookup", "lookup", "release"]
    assert [event.type for event in events] == types
    assert {(event.result, event.reason) for event in events} == {("fail", None)}


def test_invalid_input_is_reported_and_raised(backend, events):
    for operation in (lambda: backend.acquire(None), lambda: backend.release(7)):
        with pytest.raises(LockError):
            operation()
    assert events == [LockEvent("acquire", "fail"), LockEvent("release", "fail")]


def test_invalid_input_is_not_hashed(watched, events):
    # The length limit of keys exists to avoid hashing megabytes.
    backend = watched(events.append, include_raw=True)
    with pytest.raises(LockError):
        backend.acquire("k" * 1_000_000)
    assert events == [LockEvent("acquire", "fail")]


def test_events_have_no_raw_identifiers_by_default(backend, events):
    backend.acquire("k", 60_000)
    backend.is_locked("k")
    assert {(event.key, event.lock_id) for event in events} == {(None, None)}


def test_events_have_raw_identifiers_with_include_raw(watched, events):
    result = watched(events.append, include_raw=True).acquire("k", 60_000)
    assert [(event.key, event.lock_id) for event in events] == [("k", result.lock_id)]


def test_a_function_can_allow_raw_identifiers_for_each_event(watched, events):
    backend = watched(events.append, include_raw=lambda event: event.result == "fail")
    backend.acquire("k", 60_000)
    backend.acquire("k", 60_000)
    assert [event.key for event in events] == [None, "k"]


def test_a_callback_that_fails_does_not_affect_the_lock(watched, caplog):
    def complain(event):
        raise RuntimeError(f"cannot take {event.key}")

    backend = watched(complain, include_raw=True)
    result = backend.acquire("very-secret", 60_000)
    assert result.ok
    assert backend.release(result.lock_id).ok
    assert "telemetry callback failed" in caplog.text
    assert "very-secret" not in caplog.text


def test_an_include_raw_function_that_fails_does_not_affect_the_lock(watched, events, caplog):
    backend = watched(events.append, include_raw=lambda _event: 1 / 0)
    assert backend.acquire("k", 60_000).ok
    assert events == []
    assert caplog.records


@pytest.mark.parametrize("options", [{"on_event": None}, {"on_event": print, "include_raw": "yes"}])
def test_bad_settings_are_refused(watched, options):
    with pytest.raises(LockError) as caught:
        watched(**options)
    assert caught.value.code == "InvalidArgument"


def test_a_backend_without_telemetry_computes_no_hashes(server, monkeypatch):
    def computed(_value):
        raise AssertionError("a hash was computed")

    backend = RedisBackend(fakeredis.FakeRedis(server=server))
    monkeypatch.setattr(backend._calls, "hash", computed)
    result = backend.acquire("k", 60_000)
    backend.is_locked("k")
    backend.extend(result.lock_id)
    assert backend.release(result.lock_id).ok


def test_the_wrapper_has_the_attributes_of_the_wrapped_backend(server):
    inner = RedisBackend(fakeredis.FakeRedis(server=server), hash_secret="s")
    backend = with_telemetry(inner, print)
    assert backend.capabilities == inner.capabilities
    assert backend.disposal is inner.disposal
    assert backend.hash("k") == inner.hash("k") != hash_key("k")


class Closable:
    """A backend that only counts how often it is closed."""

    def __init__(self):
        self.closed = 0

    def acquire(self): ...

    def hash(self, value): ...

    def close(self):
        self.closed += 1

    async def aclose(self):
        self.closed += 1


def test_closing_the_wrapper_closes_the_backend():
    inner = Closable()
    with with_telemetry(inner, print) as backend:
        assert (type(backend).__name__, inner.closed) == ("ReportingBackend", 0)
    assert inner.closed == 1
    backend.close()
    assert inner.closed == 2


def test_closing_the_asyncio_wrapper_closes_the_backend():
    async def run():
        inner = Closable()
        async with aio.with_telemetry(inner, print) as backend:
            assert (type(backend).__name__, inner.closed) == ("AsyncReportingBackend", 0)
        assert inner.closed == 1
        await backend.aclose()
        assert inner.closed == 2

    asyncio.run(run())


class NeverClosed:
    """A third-party backend without ``close``."""

    def acquire(self): ...

    def hash(self, value): ...


def test_the_wrapper_of_a_backend_without_close_can_be_closed():
    async def run():
        async with aio.with_telemetry(NeverClosed(), print):
            pass

    asyncio.run(run())
    with with_telemetry(NeverClosed(), print):
        pass


# -- only asyncio ---------------------------------------------------------------------------------


def test_an_async_callback_is_not_awaited_by_the_operation(server):
    async def run():
        client = fakeredis.FakeAsyncRedis(server=server)
        may_end, ended = asyncio.Event(), asyncio.Event()

        async def slow(_event):
            await may_end.wait()
            ended.set()

        backend = aio.with_telemetry(AsyncRedisBackend(client), slow)
        assert (await backend.acquire("k", 60_000)).ok
        assert not ended.is_set()
        may_end.set()
        await asyncio.wait_for(ended.wait(), 20)
        await client.aclose()

    asyncio.run(run())


def test_an_async_callback_that_fails_is_only_logged(server, caplog):
    async def run():
        client = fakeredis.FakeAsyncRedis(server=server)

        async def complain(event):
            raise RuntimeError(f"cannot take {event.key}")

        backend = aio.with_telemetry(AsyncRedisBackend(client), complain, include_raw=True)
        assert (await backend.acquire("very-secret", 60_000)).ok
        for _ in range(5):
            await asyncio.sleep(0)
        await client.aclose()

    asyncio.run(run())
    assert "telemetry callback failed" in caplog.text
    assert "very-secret" not in caplog.text


def test_an_async_callback_of_a_blocking_backend_is_logged_as_an_error(server, caplog):
    async def never_run(_event): ...

    backend = with_telemetry(RedisBackend(fakeredis.FakeRedis(server=server)), never_run)
    assert backend.acquire("k", 60_000).ok
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# -- lock() ---------------------------------------------------------------------------------------


def test_lock_reports_its_operations(server, events):
    backend = with_telemetry(RedisBackend(fakeredis.FakeRedis(server=server)), events.append)
    with lock(backend, "k"), ThreadPoolExecutor(1) as other:
        with pytest.raises(LockError):
            other.submit(
                backend.lock("k", acquisition=Acquisition(max_retries=0)).__enter__
            ).result()
    assert [(event.type, event.result, event.reason) for event in events] == [
        ("acquire", "ok", None),
        ("acquire", "fail", "locked"),
        ("release", "ok", None),
    ]


def test_the_asyncio_lock_reports_its_operations(server, events):
    async def run():
        client = fakeredis.FakeAsyncRedis(server=server)
        backend = aio.with_telemetry(AsyncRedisBackend(client), events.append)
        async with backend.lock("k"):
            with pytest.raises(LockError):
                other = aio.lock(backend, "k", acquisition=Acquisition(max_retries=0))
                await asyncio.create_task(other.__aenter__())
        await client.aclose()

    asyncio.run(run())
    assert [(event.type, event.result, event.reason) for event in events] == [
        ("acquire", "ok", None),
        ("acquire", "fail", "locked"),
        ("release", "ok", None),
    ]


def test_undo_releases_what_the_last_attempt_acquired(server, events):
    backend = with_telemetry(RedisBackend(fakeredis.FakeRedis(server=server)), events.append)
    waiter = backend.open_waiter("k")
    waiter.attempt(60_000, None, 0)
    assert backend.is_locked("k")
    waiter.undo()  # in the background: it waits for the first try, but not for long
    wait_until(lambda: not backend.is_locked("k"))


# -- callbacks that call sys.exit() ---------------------------------------------------------------


def test_a_callback_that_exits_ends_neither_the_operation_nor_telemetry():
    seen = []

    def leave(event):
        seen.append(event.type)
        sys.exit(1)

    backend = with_telemetry(RedisBackend(fakeredis.FakeRedis()), leave)
    assert backend.acquire("k", 60_000).release().ok
    assert seen == ["acquire", "release"]


def test_the_callback_thread_survives_a_callback_that_exits():
    """The heartbeat's extensions are reported on that thread."""
    seen, both = [], threading.Event()

    def leave(event):
        seen.append(event)
        if len(seen) == 2:
            both.set()
        sys.exit(1)

    reporter = Reporter(leave, False, hash_key)
    queue = CallbackQueue(1)
    for _ in range(2):
        queue.put(partial(reporter.report_extension, "A" * 22, ExtendResult(True)))
    assert both.wait(60)


def test_asyncio_a_callback_that_exits_does_not_end_the_loop():
    seen = []

    async def leave(event):
        seen.append(event.type)
        sys.exit(1)

    async def run():
        backend = aio.with_telemetry(AsyncRedisBackend(fakeredis.FakeAsyncRedis()), leave)
        acquired = await backend.acquire("k", 60_000)
        await asyncio.sleep(0)
        await acquired.release()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert seen == ["acquire", "release"]
