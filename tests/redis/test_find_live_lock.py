"""Finds one live lock among many, by a condition that only this process can evaluate."""

from __future__ import annotations

import os
import threading

import pytest

from syncguard import format_fence
from syncguard.redis import RedisBackend

ROUNDS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "20"))


@pytest.fixture
def backend(syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url) as backend:
        yield backend


def by_key(key):
    return lambda info: info.key == key


def seen(backend, key):
    info = backend.lookup(key=key)
    return {"key_hash": info.key_hash, "fence": info.fence, "lock_id_hash": info.lock_id_hash}


def test_a_lock_is_found_by_its_raw_key_and_has_its_lock_id(backend):
    backend.acquire("one", 60_000)
    two = backend.acquire("two", 60_000, holder="me")
    [found] = backend.find_raw(by_key("two"))
    assert (found.lock_id, found.fence, found.holder) == (two.lock_id, two.fence, "me")
    assert two.lock_id not in repr(found)
    assert backend.find_raw(by_key("three")) == []


def test_find_returns_at_most_the_requested_number(backend):
    for number in range(5):
        backend.acquire(f"k{number}", 60_000)
    assert len(backend.find_raw(lambda _info: True, at_most=2)) == 2
    assert len(backend.find_raw(lambda _info: True, at_most=9)) == 5


def test_the_server_returns_only_locks_with_the_fence(backend):
    backend.acquire("a", 60_000)
    backend.acquire("b", 60_000).release()
    backend.acquire("b", 60_000)
    asked = []
    backend.find_raw(lambda info: asked.append(info.key), fence=format_fence(2), at_most=9)
    assert asked == ["b"]


def test_the_server_returns_only_locks_acquired_at_that_time(backend):
    one = backend.acquire("a", 60_000)
    moment = backend.lookup(lock_id=one.lock_id).acquired_at_ms
    while backend.acquire("b", 60_000).ok and backend.lookup(key="b").acquired_at_ms == moment:
        backend.release(backend.find_raw(by_key("b"))[0].lock_id)
    asked = []
    marks = {"fence": format_fence(1), "acquired_at_ms": moment}
    backend.find_raw(lambda info: asked.append(info.key), 9, **marks)
    assert asked == ["a"]


def test_an_entry_without_a_lock_is_not_found(backend, syncguard_redis):
    backend.acquire("gone", 60_000)
    with syncguard_redis.client() as client:
        client.delete("syncguard:gone")
    assert backend.find_raw(lambda _info: True) == []


def test_3000_locks_are_found_one_by_one_in_a_step_for_each_thousand(backend, syncguard_redis):
    for number in range(3_000):
        backend.acquire(f"k{number}", 600_000)
    wanted = seen(backend, "k2999")
    before = syncguard_redis.commands_processed()
    assert backend.force_release(wanted.pop("key_hash"), **wanted).ok
    after = syncguard_redis.commands_processed()
    steps = after.get("evalsha", 0) - before.get("evalsha", 0)
    assert steps <= 3 + 3, "three thousand locks, one more step, a resent script, the release"
    reads = after["mget"] - before.get("mget", 0)
    assert reads <= 3 * (3 + 1), "a step reads its locks in a few requests, not one by one"
    assert not backend.is_locked("k2999")
    assert backend.is_locked("k0")


@pytest.mark.rounds
def test_a_held_lock_is_found_while_the_list_changes(backend, syncguard_redis):
    """Acquired, extended and expired locks change the position of all others in the list."""
    for number in range(2_500):
        backend.acquire(f"still:{number}", 600_000)
    held = backend.acquire("held", 600_000)
    stop = threading.Event()

    def churn():
        with RedisBackend.from_url(syncguard_redis.url) as other:
            while not stop.is_set():
                for number in range(50):
                    other.acquire(f"brief:{number}", 600_000)
                other.extend(held.lock_id, 600_000)
                for info in other.find_raw(lambda i: i.key.startswith("brief:"), at_most=50):
                    other.release(info.lock_id)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        missed = sum(not backend.find_raw(by_key("held"), fence=held.fence) for _ in range(ROUNDS))
    finally:
        stop.set()
        thread.join()
    assert missed == 0


@pytest.mark.parametrize(("limit", "requests"), [(0, 1), (100, 1), (1_000, 1), (10_000, 2)])
def test_a_page_with_its_number_and_time_is_one_request_for_each_thousand(
    backend, syncguard_redis, limit, requests
):
    for number in range(1_200):
        backend.acquire(f"invoice:{number}", 60_000)
    backend.page_raw(1)
    before = syncguard_redis.commands_processed()
    page = backend.page_raw(limit)
    after = syncguard_redis.commands_processed()
    assert (len(page.locks), page.total) == (min(limit, 1_200), 1_200)
    assert after["evalsha"] - before["evalsha"] == requests
    assert after["time"] - before["time"] == requests  # only scripts called TIME


def test_the_live_locks_can_be_listed_raw(backend):
    later = backend.acquire("later", 90_000)
    sooner = backend.acquire("sooner", 60_000)
    raw = backend.live_locks_raw()
    assert [(info.key, info.lock_id) for info in raw] == [
        ("sooner", sooner.lock_id),
        ("later", later.lock_id),
    ]
    assert [info.key_hash for info in raw] == [info.key_hash for info in backend.live_locks()]


@pytest.mark.asyncio
async def test_the_asyncio_backend_finds_and_lists_the_same(backend, syncguard_redis):
    from syncguard.redis import AsyncRedisBackend

    backend.acquire("one", 60_000)
    async with AsyncRedisBackend.from_url(syncguard_redis.url) as other:
        [found] = await other.find_raw(by_key("one"))
        assert [found] == await other.live_locks_raw()
        marks = {"fence": found.fence, "lock_id_hash": found.lock_id_hash}
        assert not (await other.force_release(found.key_hash, fence="9", lock_id_hash="x")).ok
        assert (await other.force_release(found.key_hash, **marks)).ok
