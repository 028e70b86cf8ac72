"""What is in Redis while a lock is held: the keys of the specification, and our internal ones."""

from __future__ import annotations

import json

import pytest
from wait_until import wait_until

from syncguard import get_by_key_raw, make_storage_key
from syncguard.redis.names import KEY_BUDGET_BYTES, RESERVE_BYTES

LONG_PREFIX = "p" * 480
LONG_KEY = "k" * 512


def everything(client):
    return sorted(client.scan_iter())


@pytest.fixture
def lock(backend):
    return backend.acquire("invoice:42", 60_000)


def test_a_lock_is_a_json_record_an_index_and_a_counter(client, lock):
    ours = ["syncguard:id::fences", "syncguard:id::live"]
    specified = [
        "syncguard:invoice:42",
        f"syncguard:id:{lock.lock_id}",
        "syncguard:fence:syncguard:invoice:42",
    ]
    assert everything(client) == sorted(specified + ours)


def test_the_record_has_the_fields_of_the_specification(client, lock):
    record = json.loads(client.get("syncguard:invoice:42"))
    assert record == {
        "lockId": lock.lock_id,
        "key": "invoice:42",
        "fence": lock.fence,
        "expiresAtMs": lock.expires_at_ms,
        "acquiredAtMs": lock.expires_at_ms - 60_000,
    }


def test_the_label_is_in_the_record_only_when_given(client, backend):
    backend.acquire("k", 60_000, holder='quotes " and \\ and ü')
    assert json.loads(client.get("syncguard:k"))["holder"] == 'quotes " and \\ and ü'


@pytest.mark.parametrize("change", ["extend", "adopt"])
def test_extend_and_adopt_keep_the_fields_of_the_record(client, backend, lock, change):
    getattr(backend, change)(lock.lock_id, 30_000)
    record = json.loads(client.get("syncguard:invoice:42"))
    assert set(record) == {"lockId", "key", "fence", "expiresAtMs", "acquiredAtMs"}
    assert record["fence"] == lock.fence
    assert record["acquiredAtMs"] == lock.expires_at_ms - 60_000
    assert all(type(record[name]) is int for name in ("expiresAtMs", "acquiredAtMs"))


def test_the_index_holds_the_full_storage_key(client, lock):
    assert client.get(f"syncguard:id:{lock.lock_id}") == "syncguard:invoice:42"


@pytest.mark.parametrize("change", [None, "extend", "adopt"])
def test_record_and_index_have_the_same_ttl(client, backend, change):
    lock = backend.acquire("k", 60_000)
    if change:
        getattr(backend, change)(lock.lock_id, 45_000)
    lock_id = get_by_key_raw(backend, "k").lock_id
    # Repeat until both are read in one millisecond: before Redis 7.2 time moves within a script.
    ask = client.register_script("""
        local record, index, again
        repeat
            record = redis.call('PTTL', KEYS[1])
            index = redis.call('PTTL', KEYS[2])
            again = redis.call('PTTL', KEYS[1])
        until record == again
        return {record, index}
    """)
    record, index = ask(keys=["syncguard:k", f"syncguard:id:{lock_id}"])
    assert record == index
    assert 0 < record <= (45_000 if change else 60_000)


def test_the_ttl_in_redis_ends_at_the_expiry_in_the_record(client, lock):
    ask = client.register_script("return {redis.call('PTTL', KEYS[1]), redis.call('TIME')}")
    ttl, (seconds, microseconds) = ask(keys=["syncguard:invoice:42"])
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    # Redis computes the TTL from the start of the script, but TIME returns the current time.
    assert abs(now_ms + ttl - lock.expires_at_ms) <= 1_000


def test_a_lock_takes_less_than_a_kilobyte(client, make_backend):
    backend = make_backend(key_prefix="mem")
    backend.acquire("first", 60_000)
    before = client.memory_usage("mem:id::live")
    lock = backend.acquire("invoice:2026:000042", 60_000, holder="worker-7@host-12")
    names = ["mem:invoice:2026:000042", f"mem:id:{lock.lock_id}"]
    listed = client.memory_usage("mem:id::live") - before
    assert sum(client.memory_usage(name) for name in names) + listed < 1024


def test_the_fence_counter_has_no_ttl_and_survives_the_lock(client, backend, lock):
    backend.release(lock.lock_id)
    assert client.ttl("syncguard:fence:syncguard:invoice:42") == -1
    assert client.get("syncguard:fence:syncguard:invoice:42") == "1"


def test_a_release_leaves_only_counters(client, backend, lock):
    backend.release(lock.lock_id)
    assert everything(client) == ["syncguard:fence:syncguard:invoice:42", "syncguard:id::fences"]


@pytest.mark.usefixtures("lock")
def test_a_refused_acquire_without_waiting_writes_nothing(client, backend):
    before = everything(client)
    assert not backend.acquire("invoice:42", 60_000).ok
    assert everything(client) == before


def test_reading_writes_nothing(client, backend, lock):
    before = {name: client.dump(name) for name in everything(client)}
    backend.is_locked("invoice:42")
    backend.is_locked("free")
    backend.lookup(key="invoice:42")
    backend.lookup(lock_id=lock.lock_id)
    assert {name: client.dump(name) for name in everything(client)} == before


def test_every_key_has_its_own_counter(backend):
    for _ in range(3):
        backend.acquire("one", 60_000).release()
    assert backend.acquire("one", 60_000).fence == "000000000000004"
    assert backend.acquire("other", 60_000).fence == "000000000000001"


def test_locks_with_different_prefixes_do_not_exclude_each_other(make_backend):
    mine, theirs = make_backend(key_prefix="mine"), make_backend(key_prefix="theirs")
    mine.acquire("k", 60_000)
    assert theirs.acquire("k", 60_000).ok
    assert mine.count_live_locks() == theirs.count_live_locks() == 1


# -- names that had to be hashed ------------------------------------------------------------------


@pytest.fixture(params=[480, 940, 951], ids=lambda n: f"prefix of {n}")
def long_prefix(request):
    return "p" * request.param


def test_a_hashed_name_is_the_name_of_the_specification(client, make_backend):
    lock = make_backend(key_prefix=LONG_PREFIX).acquire(LONG_KEY, 60_000)
    name = make_storage_key(LONG_PREFIX, LONG_KEY, KEY_BUDGET_BYTES, RESERVE_BYTES)
    assert len(name) < len(LONG_PREFIX) + 30
    assert json.loads(client.get(name))["key"] == LONG_KEY
    assert client.get(f"{LONG_PREFIX}:id:{lock.lock_id}") == name


def test_a_lock_with_a_hashed_name_can_be_released(make_backend, long_prefix):
    backend = make_backend(key_prefix=long_prefix)
    lock = backend.acquire(LONG_KEY, 60_000)
    assert not backend.acquire(LONG_KEY, 60_000).ok
    assert backend.release(lock.lock_id).ok
    assert not backend.is_locked(LONG_KEY)


def test_a_lock_with_a_hashed_name_can_be_extended_and_looked_up(make_backend, long_prefix):
    backend = make_backend(key_prefix=long_prefix)
    lock = backend.acquire(LONG_KEY, 30_000)
    assert backend.extend(lock.lock_id, 60_000).ok
    info = backend.lookup(lock_id=lock.lock_id)
    assert info == backend.lookup(key=LONG_KEY)
    assert info.expires_at_ms > lock.expires_at_ms


def test_a_lock_with_a_hashed_name_can_be_adopted_and_listed(make_backend, long_prefix):
    backend = make_backend(key_prefix=long_prefix)
    new = backend.adopt(backend.acquire(LONG_KEY, 30_000).lock_id, 60_000)
    assert [info.fence for info in backend.live_locks()] == [new.fence]
    assert new.release().ok


def test_fences_of_a_hashed_name_grow(make_backend, long_prefix):
    backend = make_backend(key_prefix=long_prefix)
    first = backend.acquire(LONG_KEY, 30_000)
    first.release()
    assert backend.acquire(LONG_KEY, 30_000).fence > first.fence
    assert backend.acquire(LONG_KEY[:-1] + "x", 30_000).fence == "000000000000001"


# -- other languages ------------------------------------------------------------------------------


def test_a_lock_of_a_client_in_another_language_excludes_us(client, backend):
    """The bytes are those of the TypeScript client: no label, and no entry in our list."""
    now_ms = backend.acquire("clock", 60_000).expires_at_ms - 60_000
    lock_id = "T" * 22
    record = {
        "lockId": lock_id,
        "expiresAtMs": now_ms + 60_000,
        "acquiredAtMs": now_ms,
        "key": "shared",
        "fence": "000000000000009",
    }
    client.set("syncguard:shared", json.dumps(record, separators=(",", ":")), px=60_000)
    client.set(f"syncguard:id:{lock_id}", "syncguard:shared", px=60_000)
    client.set("syncguard:fence:syncguard:shared", 9)
    assert not backend.acquire("shared", 60_000).ok
    assert backend.lookup(key="shared").fence == "000000000000009"
    assert backend.extend(lock_id, 60_000).ok
    assert backend.release(lock_id).ok
    assert backend.acquire("shared", 60_000).fence == "000000000000010"


EXTEND_ELSEWHERE = """
local lockKey = redis.call('GET', KEYS[1])
local record = lockKey and redis.call('GET', lockKey)
if not record then
    return 0
end
local data = cjson.decode(record)
local time = redis.call('TIME')
data.expiresAtMs = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
redis.call('SET', lockKey, cjson.encode(data), 'PX', ARGV[1])
redis.call('SET', KEYS[1], lockKey, 'PX', ARGV[1])
return 1
"""
LIVE = "syncguard:id::live"


def extend_elsewhere(client, held, ttl_ms):
    """As the TypeScript client does it: both keys with the new TTL, and no entry in our list."""
    return client.eval(EXTEND_ELSEWHERE, 1, f"syncguard:id:{held.lock_id}", ttl_ms)


def changed_in_time(backend, change):
    """A lock that is changed before it expires: on a busy machine, one with a longer TTL."""
    ttl_ms = 1_000
    while not ((held := backend.acquire("k", ttl_ms)).ok and change(held)):
        wait_until(lambda: not backend.is_locked("k"), 60)
        ttl_ms *= 2
    return held


def pass_expiry(client, held):
    """Wait until the old expiry of a lock has passed, by the clock of the server."""
    while True:
        seconds, micros = client.time()
        if seconds * 1000 + micros // 1000 > held.expires_at_ms:
            return


def test_a_lock_extended_by_a_client_in_another_language_stays_listed(client, backend):
    held = changed_in_time(backend, lambda held: extend_elsewhere(client, held, 60_000))
    pass_expiry(client, held)
    [info] = backend.live_locks()
    assert info == backend.lookup(key="k")
    assert backend.count_live_locks() == 1
    assert client.zscore(LIVE, "syncguard:k") == info.expires_at_ms


def test_an_acquire_that_removes_expired_entries_keeps_such_a_lock(client, backend):
    held = changed_in_time(backend, lambda held: extend_elsewhere(client, held, 60_000))
    pass_expiry(client, held)
    while client.zscore(LIVE, "syncguard:k") == held.expires_at_ms:
        backend.acquire("other", 60_000).release()
    assert client.zscore(LIVE, "syncguard:k") == backend.lookup(key="k").expires_at_ms


def test_such_a_lock_has_its_place_in_the_order_of_the_list(client, backend):
    first, second = backend.acquire("first", 30_000), backend.acquire("second", 40_000)
    backend.acquire("third", 50_000)
    extend_elsewhere(client, first, 45_000)
    keys = [info.key for info in backend.page_raw().locks]
    assert keys == ["second", "first", "third"]
    assert [info.key for info in backend.page_raw(limit=1).locks] == ["second"]
    extend_elsewhere(client, second, 55_000)
    assert [info.key for info in backend.page_raw(limit=1).locks] == ["first"]


def test_a_key_that_looks_like_a_record_does_not_confuse_the_list(client, backend):
    odd = 'x"expiresAtMs":1,"'
    assert backend.acquire(odd, 60_000).ok
    for _ in range(2):
        assert [info.key for info in backend.page_raw().locks] == [odd]
    assert client.zcard(LIVE) == 1


def test_a_lock_that_was_stored_without_a_ttl_leaves_the_list_when_it_has_expired(client, backend):
    held = changed_in_time(backend, lambda _held: client.persist("syncguard:k"))
    pass_expiry(client, held)
    assert backend.live_locks() == []
    assert client.zcard(LIVE) == 0


def test_a_lock_released_by_a_client_in_another_language_is_not_listed(client, backend):
    """That client does not know our list, and does not remove the entry."""
    gone, here = backend.acquire("gone", 30_000), backend.acquire("here", 60_000)
    client.delete("syncguard:gone", f"syncguard:id:{gone.lock_id}")
    assert backend.live_locks(limit=1) == [backend.lookup(lock_id=here.lock_id)]
    assert client.zrange("syncguard:id::live", 0, -1) == ["syncguard:here"]
