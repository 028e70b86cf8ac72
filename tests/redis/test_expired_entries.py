"""Entries of expired locks leave the list of live locks: a bounded number at a time, and soon."""

from __future__ import annotations

import pytest

LIVE = "syncguard:id::live"
PAST_MS = 1_000
"""An expiry in the far past, on the server's clock."""


@pytest.fixture
def expired(client):
    """Lists locks that expired without a release; returns how many entries are left."""

    def add(number):
        entries = [f"syncguard:dead:{n}" for n in range(number)]
        for start in range(0, number, 10_000):
            client.zadd(LIVE, dict.fromkeys(entries[start : start + 10_000], PAST_MS))
        return lambda: client.zcount(LIVE, "-inf", PAST_MS)

    return add


def acquire_and_release(backend, key):
    backend.acquire(key, 60_000).release()


def test_keys_whose_counters_are_in_step_remove_expired_entries(backend, expired):
    """Each key is acquired a second time: no counter is new, and none is near 64."""
    keys = [f"k{n}" for n in range(50)]
    for key in keys:
        acquire_and_release(backend, key)
    left = expired(500)
    for _ in range(40):
        for key in keys:
            acquire_and_release(backend, key)
        if not left():
            return
    pytest.fail(f"{left()} entries left after {40 * len(keys)} acquires")


@pytest.mark.parametrize("key", ["always the same", "new {}"])
def test_expired_entries_disappear_faster_than_acquires_can_add_them(backend, expired, key):
    left = expired(20_000)
    acquires = 0
    while left():
        acquire_and_release(backend, key.format(acquires))
        acquires += 1
        assert acquires < 10_000, f"{left()} entries left"


def test_one_acquire_removes_a_bounded_number(backend, expired):
    left = expired(5_000)
    before = 5_000
    while before:
        acquire_and_release(backend, "k")
        now = left()
        assert before - now <= 256
        before = now


def test_live_locks_stay_listed_while_expired_entries_are_removed(backend, expired):
    kept = [backend.acquire(f"kept:{n}", 60_000) for n in range(5)]
    left = expired(1_000)
    while left():
        acquire_and_release(backend, "k")
    assert [info.fence for info in backend.live_locks()] == [lock.fence for lock in kept]


@pytest.mark.parametrize("number", [3, 2_500])
def test_a_page_and_the_count_skip_expired_entries(backend, expired, number):
    kept = [backend.acquire(f"kept:{n}", 60_000 + n * 1_000) for n in range(5)]
    left = expired(number)
    assert backend.count_live_locks() == 5
    page = backend.page_raw(limit=2, offset=1)
    assert [info.lock_id for info in page.locks] == [lock.lock_id for lock in kept[1:3]]
    assert page.total == 5
    assert left() == max(0, number - 512)


def test_counting_writes_nothing(backend, expired):
    left = expired(3)
    assert backend.count_live_locks() == 0
    assert left() == 3
