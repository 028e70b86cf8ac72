"""What the scripts answer in the exact millisecond in which a lock expires, and right before it.

``now`` sets the time of the scripts.
"""

from __future__ import annotations

import json

import pytest

from syncguard import TIME_TOLERANCE_MS
from syncguard.constants import CLEANUP_GUARD_MS

TTL_MS = 60_000
LIVE = "syncguard:id::live"


def test_a_lock_is_held_until_its_expiry_and_the_tolerance_are_over(backend, now):
    backend.acquire("k", TTL_MS)
    now(TTL_MS + TIME_TOLERANCE_MS - 1)
    assert backend.is_locked("k")
    now(TTL_MS + TIME_TOLERANCE_MS)
    assert not backend.is_locked("k")


def test_another_holder_gets_it_in_the_same_millisecond(backend, now):
    backend.acquire("k", TTL_MS)
    now(TTL_MS + TIME_TOLERANCE_MS - 1)
    assert not backend.acquire("k", TTL_MS).ok
    now(TTL_MS + TIME_TOLERANCE_MS)
    assert backend.acquire("k", TTL_MS).ok


@pytest.mark.parametrize(("after_ms", "counted"), [(-1, 1), (0, 0)])
def test_a_lock_is_counted_until_its_expiry(backend, now, after_ms, counted):
    backend.acquire("k", TTL_MS)
    now(TTL_MS + after_ms)
    assert backend.count_live_locks() == counted


@pytest.mark.parametrize(("after_ms", "ok"), [(-1, True), (0, False)])
def test_a_release_is_a_success_until_then(backend, now, after_ms, ok):
    held = backend.acquire("k", TTL_MS)
    now(TTL_MS + TIME_TOLERANCE_MS + after_ms)
    assert backend.release(held.lock_id).ok is ok
    assert not backend.is_locked("k")


@pytest.mark.parametrize(("after_ms", "ok"), [(-1, True), (0, False)])
def test_an_extension_or_an_adoption_comes_before_the_expiry(backend, now, after_ms, ok):
    to_extend, to_adopt = backend.acquire("extend", TTL_MS), backend.acquire("adopt", TTL_MS)
    now(TTL_MS + after_ms)
    assert backend.extend(to_extend.lock_id, TTL_MS).ok is ok
    assert backend.adopt(to_adopt.lock_id, TTL_MS).ok is ok


@pytest.mark.parametrize(("after_ms", "is_removed"), [(0, False), (1, True)])
def test_is_locked_removes_a_lock_that_has_been_over_for_some_time(
    make_backend, client, now, after_ms, is_removed
):
    backend = make_backend(cleanup_in_is_locked=True)
    held = backend.acquire("k", TTL_MS)
    now(TTL_MS + CLEANUP_GUARD_MS + after_ms)
    assert not backend.is_locked("k")
    names = ("syncguard:k", f"syncguard:id:{held.lock_id}")
    assert client.exists(*names) == (0 if is_removed else 2)
    assert (client.zscore(LIVE, "syncguard:k") is None) is is_removed


@pytest.mark.parametrize(("after_ms", "are_removed"), [(0, True), (1, False), (31, False)])
def test_every_32nd_millisecond_an_acquire_removes_expired_entries(
    backend, client, now, after_ms, are_removed
):
    client.zadd(LIVE, {"syncguard:gone": 1_000})
    now(after_ms)
    backend.acquire("k", TTL_MS)
    assert (client.zscore(LIVE, "syncguard:gone") is None) is are_removed


@pytest.mark.parametrize("script", ["acquire", "live_locks"])
@pytest.mark.parametrize(("after_ms", "is_listed"), [(1, True), (0, False)])
def test_an_entry_stays_if_another_client_has_extended_its_lock_beyond_now(
    backend, client, now, script, after_ms, is_listed
):
    """A client in another language extends the lock, and does not know the list."""
    backend.acquire("foreign", TTL_MS)
    record = json.loads(client.get("syncguard:foreign"))
    at_ms = now(0)
    record["expiresAtMs"] = at_ms + after_ms
    client.set("syncguard:foreign", json.dumps(record, separators=(",", ":")))
    client.zadd(LIVE, {"syncguard:foreign": at_ms - 1})
    if script == "acquire":
        backend.acquire("k", TTL_MS)
    else:
        backend.live_locks()
    assert client.zscore(LIVE, "syncguard:foreign") == (at_ms + 1 if is_listed else None)


def test_the_list_of_live_locks_has_the_expiry_of_an_extended_and_of_an_adopted_lock(
    backend, client, now
):
    to_extend, to_adopt = backend.acquire("extend", TTL_MS), backend.acquire("adopt", TTL_MS)
    at_ms = now(1_234)
    backend.extend(to_extend.lock_id, TTL_MS)
    backend.adopt(to_adopt.lock_id, TTL_MS)
    listed = dict(client.zrange(LIVE, 0, -1, withscores=True))
    assert listed == dict.fromkeys(["syncguard:extend", "syncguard:adopt"], at_ms + TTL_MS)
