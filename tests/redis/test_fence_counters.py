"""Fence counters: their maximum, restarts and data loss, and ``fence_floor="clock"``."""

from __future__ import annotations

import logging

import pytest

from syncguard import FENCE_MAX, FENCE_WARN, LockError, hash_key, redis_server_time_ms
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer

COUNTER = "syncguard:fence:syncguard:k"


def test_the_largest_fence_is_returned_and_no_larger_one(client, backend):
    client.set(COUNTER, int(FENCE_MAX) - 1)
    last = backend.acquire("k", 60_000)
    assert last.fence == FENCE_MAX
    last.release()
    with pytest.raises(LockError) as caught:
        backend.acquire("k", 60_000)
    assert caught.value.code == "Internal"
    assert not backend.is_locked("k")
    assert backend.count_live_locks() == 0


def test_a_counter_near_its_maximum_is_logged_with_the_hash_of_the_key(client, backend, caplog):
    caplog.set_level(logging.WARNING, "syncguard")
    client.set(COUNTER, int(FENCE_WARN) - 1)
    backend.acquire("k", 60_000).release()
    assert caplog.records == []
    backend.acquire("k", 60_000)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert hash_key("k") in record.getMessage()


def test_large_fences_keep_every_digit(client, backend):
    client.set(COUNTER, 899_999_999_999_990)
    fences = []
    for _ in range(10):
        lock = backend.acquire("k", 60_000)
        assert backend.lookup(key="k").fence == lock.fence
        backend.extend(lock.lock_id, 60_000)
        assert backend.lookup(key="k").fence == lock.fence
        fences.append(int(lock.fence))
        lock.release()
    assert fences == list(range(899_999_999_999_991, 900_000_000_000_001))


def test_fences_grow_after_a_restart(backend_on):
    with RedisServer(aof=True) as server:
        backend = backend_on(server)
        first = backend.acquire("k", 60_000)
        first.release()
        server.restart()
        assert backend.acquire("k", 60_000).fence > first.fence


def test_fences_grow_after_a_crash_with_aof(backend_on):
    with RedisServer(aof=True) as server:
        backend = backend_on(server)
        first = backend.acquire("k", 60_000)
        first.release()
        server.kill()
        server.restart()
        assert backend.acquire("k", 60_000).fence > first.fence


def test_without_a_floor_a_lost_counter_restarts_at_one(client, backend):
    """This is why ``fence_floor`` exists."""
    for _ in range(5):
        backend.acquire("k", 60_000).release()
    client.flushall()
    assert backend.acquire("k", 60_000).fence == "000000000000001"


def wait_until_the_clock_has_passed(client, fence):
    """Only in a test is data lost and written again within one millisecond."""
    while redis_server_time_ms(client.time()) * 10 <= int(fence):
        pass


def test_with_a_floor_fences_grow_after_a_loss_of_all_data(client, make_backend):
    backend = make_backend(fence_floor="clock")
    first = backend.acquire("k", 60_000)
    client.flushall()
    wait_until_the_clock_has_passed(client, first.fence)
    assert backend.acquire("k", 60_000).fence > first.fence


def test_with_a_floor_fences_grow_after_an_old_snapshot_was_restored(client, make_backend):
    backend = make_backend(fence_floor="clock")
    backend.acquire("k", 60_000).release()
    snapshot = client.get(COUNTER)
    for _ in range(3):
        last = backend.acquire("k", 60_000)
        last.release()
    client.set(COUNTER, snapshot)
    wait_until_the_clock_has_passed(client, last.fence)
    assert backend.acquire("k", 60_000).fence > last.fence


def test_the_floor_raises_a_counter_and_never_lowers_one(client, make_backend):
    plain, lifted = make_backend(), make_backend(fence_floor="clock")
    first = plain.acquire("k", 60_000)
    first.release()
    second = lifted.acquire("k", 60_000)
    second.release()
    assert int(second.fence) >= client.time()[0] * 10_000 - 600_000_000
    client.set(COUNTER, 800_000_000_000_000)
    assert lifted.acquire("k", 60_000).fence == "800000000000001"


def test_fences_from_the_clock_grow_within_one_millisecond(make_backend):
    backend = make_backend(fence_floor="clock")
    fences = []
    for _ in range(30):
        lock = backend.acquire("k", 60_000)
        fences.append(lock.fence)
        lock.release()
    assert fences == sorted(set(fences))
    assert fences[-1] < FENCE_WARN


def test_counting_fence_counters_needs_no_scan(syncguard_redis):
    with syncguard_redis.client() as client:
        backend = RedisBackend(client)
        for n in range(7):
            backend.acquire(f"key {n % 5}", 60_000)
        backend.release(backend.acquire("another", 60_000).lock_id)
        before = syncguard_redis.commands_processed()
        assert backend.count_fence_counters() == 6
        after = syncguard_redis.commands_processed()
    assert after.get("scan", 0) == before.get("scan", 0)
    assert after.get("keys", 0) == before.get("keys", 0)


def test_listing_does_not_read_fence_counters(syncguard_redis, client, backend):
    client.mset({f"syncguard:fence:syncguard:old {n}": 1 for n in range(1_000)})
    backend.acquire("k", 60_000)
    before = syncguard_redis.commands_processed()
    assert len(backend.live_locks()) == 1
    assert backend.count_live_locks() == 1
    after = syncguard_redis.commands_processed()
    new = {name for name in after if after[name] != before.get(name, 0)}
    assert not new & {"scan", "keys"}
    assert sum(after[name] - before.get(name, 0) for name in new) < 20
