"""Unusual records: an index of another lock, an expired lock that is still stored.

Redis's own expiry prevents most of this. The scripts check it anyway, and these tests store such
records.
"""

from __future__ import annotations

import json

import pytest

from syncguard import ReleaseResult
from syncguard.constants import CLEANUP_GUARD_MS, TIME_TOLERANCE_MS
from syncguard.redis.script_calls import Calls

MINE, THEIRS = "M" * 22, "T" * 22


def now_ms(client):
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


COMPACT, SPACED = (",", ":"), (", ", ": ")
"""How records are written: by us, and perhaps by others."""


def store_record(
    client, key="k", lock_id=MINE, *, expired_for_ms=-60_000, indexed=True, written=COMPACT
):
    """Store a lock without a TTL whose record expired so long ago. Returns its expiry."""
    expires = now_ms(client) - expired_for_ms
    record = {"lockId": lock_id, "expiresAtMs": expires, "acquiredAtMs": expires - 1_000}
    record |= {"key": key, "fence": "000000000000001"}
    client.set(f"syncguard:{key}", json.dumps(record, separators=written))
    client.set(f"syncguard:fence:syncguard:{key}", 1)
    client.zadd("syncguard:id::live", {f"syncguard:{key}": expires})
    if indexed:
        client.set(f"syncguard:id:{lock_id}", f"syncguard:{key}")
    return expires


def snapshot(client):
    return {name: client.dump(name) for name in client.scan_iter()}


LONG_GONE_MS = TIME_TOLERANCE_MS + 60_000


# -- ownership ------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [COMPACT, SPACED], ids=["compact", "with spaces"])
@pytest.mark.parametrize(
    "mutate",
    [
        lambda b: b.release(MINE).ok,
        lambda b: b.extend(MINE, 60_000).ok,
        lambda b: b.adopt(MINE, 60_000).ok,
    ],
    ids=["release", "extend", "adopt"],
)
def test_an_index_of_another_holders_lock_changes_nothing(client, backend, mutate, written):
    store_record(client, lock_id=THEIRS, written=written)
    client.set(f"syncguard:id:{MINE}", "syncguard:k")
    before = snapshot(client)
    assert mutate(backend) is False
    assert snapshot(client) == before


def test_an_extension_changes_only_the_expiry_of_the_record(client, backend):
    held = backend.acquire("k", 60_000)
    before = client.get("syncguard:k")
    expires = backend.extend(held.lock_id, 90_000).expires_at_ms
    assert client.get("syncguard:k") == before.replace(str(held.expires_at_ms), str(expires))


@pytest.mark.parametrize("written", [COMPACT, SPACED], ids=["compact", "with spaces"])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_extension_leaves_another_expiry_inside_of_the_record(
    client, backend, is_first, written
):
    held = backend.acquire("k", 60_000)
    record, more = json.loads(client.get("syncguard:k")), {"more": {"expiresAtMs": 5}}
    record = {**more, **record} if is_first else {**record, **more}
    client.set("syncguard:k", json.dumps(record, separators=written))
    expires = backend.extend(held.lock_id, 90_000).expires_at_ms
    assert json.loads(client.get("syncguard:k")) == record | {"expiresAtMs": expires}


def test_an_undo_by_an_index_of_another_holders_lock_changes_only_the_index(client):
    index = f"syncguard:id:{MINE}"
    store_record(client, lock_id=THEIRS)
    client.set(index, "syncguard:k")
    before = snapshot(client)
    undo = Calls().undo(MINE)
    assert client.eval(undo.script.text, len(undo.keys), *undo.keys, *undo.args) == 0
    assert client.get(index) == f"{index}:undone"
    assert snapshot(client) == before | {index: client.dump(index)}


def test_lookup_by_an_index_of_another_holders_lock_finds_nothing(client, backend):
    store_record(client, lock_id=THEIRS)
    client.set(f"syncguard:id:{MINE}", "syncguard:k")
    assert backend.lookup(lock_id=MINE) is None
    assert backend.lookup(lock_id=THEIRS) is not None


@pytest.mark.parametrize(
    "mutate",
    [
        lambda b: b.release(MINE).ok,
        lambda b: b.extend(MINE, 60_000).ok,
        lambda b: b.adopt(MINE, 60_000).ok,
        lambda b: b.lookup(lock_id=MINE) is not None,
    ],
    ids=["release", "extend", "adopt", "lookup"],
)
def test_an_index_without_a_lock_finds_nothing(client, backend, mutate):
    client.set(f"syncguard:id:{MINE}", "syncguard:k")
    assert mutate(backend) is False
    assert not client.exists("syncguard:k")


def test_releasing_by_an_index_without_a_lock_removes_the_index(client, backend):
    client.set(f"syncguard:id:{MINE}", "syncguard:k")
    assert not backend.release(MINE).ok
    assert list(client.scan_iter()) == []


# -- expiry by the record -------------------------------------------------------------------------


def test_a_record_within_the_tolerance_is_still_held(client, backend):
    in_time = False
    while not in_time:  # repeat if the machine was too slow and the tolerance has ended
        expires = store_record(client, expired_for_ms=1)
        answers = (
            backend.is_locked("k"),
            backend.acquire("k", 60_000).ok,
            backend.lookup(key="k") is not None,
            backend.lookup(lock_id=MINE) is not None,
        )
        in_time = now_ms(client) - expires < TIME_TOLERANCE_MS
    assert answers == (True, False, True, True)


def test_an_expired_record_does_not_block_an_acquire(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    assert not backend.is_locked("k")
    assert backend.lookup(key="k") is None
    assert backend.lookup(lock_id=MINE) is None
    assert backend.acquire("k", 60_000).fence == "000000000000002"


def test_an_expired_record_is_not_extended_even_if_it_is_stored(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    before = snapshot(client)
    result = backend.extend(MINE, 60_000)
    assert (result.ok, result.reason) == (False, "expired")
    assert snapshot(client) == before


def test_extend_does_not_use_the_tolerance(client, backend):
    """The lock has expired by the server's clock: extend is stricter than is_locked."""
    store_record(client, expired_for_ms=1)
    assert not backend.extend(MINE, 60_000).ok
    assert not backend.adopt(MINE, 60_000).ok


def test_an_expired_record_is_not_adopted(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    result = backend.adopt(MINE, 60_000)
    assert (result.ok, result.reason) == (False, "expired")


def test_the_release_of_an_expired_record_fails_with_the_reason_expired(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    result = backend.release(MINE)
    assert result == ReleaseResult(False)
    assert result.reason == "expired"


def test_an_expired_record_is_not_listed(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    assert backend.live_locks() == []
    assert backend.count_live_locks() == 0


def test_an_expired_record_does_not_shift_the_pages_of_the_list(client, backend):
    live = backend.acquire("here", 60_000)
    store_record(client, "gone", expired_for_ms=LONG_GONE_MS)
    assert [info.fence for info in backend.live_locks(limit=1)] == [live.fence]
    assert client.zrange("syncguard:id::live", 0, -1) == ["syncguard:here"]


# -- cleanup --------------------------------------------------------------------------------------


def test_without_cleanup_is_locked_deletes_nothing(client, backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    before = snapshot(client)
    assert backend.is_locked("k") is False
    assert snapshot(client) == before


def test_cleanup_deletes_the_record_and_its_index_and_never_the_counter(client, make_backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    assert make_backend(cleanup_in_is_locked=True).is_locked("k") is False
    assert sorted(client.scan_iter()) == ["syncguard:fence:syncguard:k"]
    assert client.ttl("syncguard:fence:syncguard:k") == -1


def test_cleanup_deletes_nothing_before_the_guard_time(client, make_backend):
    backend = make_backend(cleanup_in_is_locked=True)
    in_time = False
    while not in_time:  # repeat if the machine was too slow and the guard time has ended
        # Expired, including the tolerance, but an extend that was sent could still arrive.
        expires = store_record(client, expired_for_ms=TIME_TOLERANCE_MS)
        before = snapshot(client)
        assert backend.is_locked("k") is False
        in_time = now_ms(client) - expires <= CLEANUP_GUARD_MS
    assert snapshot(client) == before


def test_cleanup_does_not_delete_a_live_lock(client, make_backend):
    backend = make_backend(cleanup_in_is_locked=True)
    backend.acquire("k", 60_000)
    before = snapshot(client)
    assert backend.is_locked("k") is True
    assert snapshot(client) == before


def test_cleanup_does_not_delete_an_index_of_another_lock(client, make_backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    client.set(f"syncguard:id:{MINE}", "syncguard:another")
    make_backend(cleanup_in_is_locked=True).is_locked("k")
    assert client.get(f"syncguard:id:{MINE}") == "syncguard:another"


def test_fences_grow_after_a_cleanup(client, make_backend):
    store_record(client, expired_for_ms=LONG_GONE_MS)
    backend = make_backend(cleanup_in_is_locked=True)
    backend.is_locked("k")
    assert backend.acquire("k", 60_000).fence == "000000000000002"
