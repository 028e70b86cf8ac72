"""Calls as values: what each sends, and how it reads the reply. No server."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from syncguard import ExtendResult, LockError, ReleaseResult, hash_key, validate_lock_id
from syncguard.backend import Refusal, sanitized
from syncguard.clock import redis_server_time_ms
from syncguard.constants import CLEANUP_GUARD_MS, FENCE_MAX, TIME_TOLERANCE_MS
from syncguard.redis import scripts
from syncguard.redis.script_calls import Calls
from syncguard.types import LockInfo

ID = "A" * 22
NOW = 1_700_000_000_000
TIME = [b"1700000000", b"000999"]


@pytest.fixture
def calls():
    return Calls()


def record(**changes):
    data = {
        "lockId": ID,
        "expiresAtMs": NOW + 5_000,
        "acquiredAtMs": NOW - 5_000,
        "key": "k",
        "fence": "000000000000007",
    }
    return json.dumps(data | changes).encode()


def malformed(call, reply):
    with pytest.raises(LockError) as caught:
        call.read(reply)
    assert caught.value.code == "Internal"
    assert caught.value.__cause__ is None
    # A traceback must not show the decoder's error either, which may quote the record.
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


# -- acquire --------------------------------------------------------------------------------------


def test_acquire_has_the_keys_of_lock_index_fence_live_set_and_count(calls):
    call = calls.acquire("k", 1_000, None)
    validate_lock_id(call.lock_id)
    assert call.script is scripts.ACQUIRE
    assert call.keys == (
        "syncguard:k",
        f"syncguard:id:{call.lock_id}",
        "syncguard:fence:syncguard:k",
        "syncguard:id::live",
        "syncguard:id::fences",
    )


def test_acquire_passes_ttl_tolerance_and_the_largest_fence(calls):
    call = calls.acquire("k", 1_234, None)
    assert call.args[:3] == (call.lock_id, "1234", str(TIME_TOLERANCE_MS))
    assert FENCE_MAX in call.args


def test_every_acquire_has_a_new_lock_id(calls):
    assert len({calls.acquire("k", 1_000, None).lock_id for _ in range(100)}) == 100


def test_a_grant_is_read_with_its_fence_and_the_servers_expiry(calls):
    call = calls.acquire("k", 1_000, None)
    granted = call.read([1, b"000000000000042", 1_700_000_000_123])
    assert granted.lock_id == call.lock_id
    assert (granted.fence, granted.expires_at_ms) == ("000000000000042", 1_700_000_000_123)
    assert granted.key == "k"


def test_zero_is_contention(calls):
    assert calls.acquire("k", 1_000, None).read(0) == Refusal()


def test_a_waiter_gets_the_remaining_time_of_the_holder(calls):
    call = calls.acquire("k", 1_000, None, wait_ms=500)
    assert call.read([0, 70]) == Refusal(70)
    assert call.read([0, -1]) == Refusal(None)


def test_only_a_waiter_sets_a_flag(calls):
    plain = calls.acquire("k", 1_000, None)
    waiting = calls.acquire("k", 1_000, None, wait_ms=500)
    assert len(waiting.keys) == len(plain.keys) + 1
    assert waiting.keys[-1] == "syncguard:id::waiting:syncguard:k"
    assert int(waiting.args[-1]) > 500


def test_a_counter_at_its_maximum_is_an_internal_error(calls):
    with pytest.raises(LockError, match="at its maximum") as caught:
        calls.acquire("k", 1_000, None).read([-1])
    assert caught.value.code == "Internal"


@pytest.mark.parametrize("fence", [b"42", b"00000000000000x", b"", 42, None, b"0" * 16])
def test_a_fence_without_fifteen_digits_is_an_internal_error(calls, fence):
    malformed(calls.acquire("k", 1_000, None), [1, fence, 1])


@pytest.mark.parametrize(
    "reply",
    [None, 1, b"OK", [], [1], "x", [1, b"000000000000001", None], [2, b"0" * 15, 1]],
    ids=repr,
)
def test_an_acquire_reply_of_another_shape_is_an_internal_error(calls, reply):
    malformed(calls.acquire("k", 1_000, None), reply)


@pytest.mark.parametrize(
    ("fence", "warns"), [(b"090000000000000", False), (b"090000000000001", True)]
)
def test_a_fence_above_the_threshold_is_logged_without_the_key(calls, caplog, fence, warns):
    caplog.set_level(logging.WARNING, "syncguard")
    calls.acquire("very-secret", 1_000, None).read([1, fence, 1])
    assert bool(caplog.records) is warns
    assert "very-secret" not in caplog.text
    assert (hash_key("very-secret") in caplog.text) is warns


# -- release, extend, adopt -----------------------------------------------------------------------


CODES = [(0, "not-found"), (-1, "not-found"), (-2, "expired")]


def test_a_successful_release_is_ok(calls):
    assert calls.release(ID).read(1) == ReleaseResult(True)


@pytest.mark.parametrize(("code", "reason"), CODES)
def test_a_failed_release_has_a_reason(calls, code, reason):
    result = calls.release(ID).read(code)
    assert (result.ok, result.reason) == (False, reason)


def test_a_successful_extend_has_the_servers_expiry(calls):
    assert calls.extend(ID, 1_000).read([123]) == ExtendResult(True, 123)


@pytest.mark.parametrize(("code", "reason"), CODES)
def test_a_failed_extend_has_a_reason(calls, code, reason):
    result = calls.extend(ID, 1_000).read([code])
    assert (result.ok, result.expires_at_ms, result.reason) == (False, None, reason)


def test_a_successful_adopt_has_a_new_lock_id_and_the_old_fence(calls):
    call = calls.adopt(ID, 1_000, None)
    granted = call.read([1, b"000000000000042", 123, b"k"])
    assert granted.lock_id == call.args[1] != ID
    assert (granted.fence, granted.expires_at_ms, granted.key) == ("000000000000042", 123, "k")


@pytest.mark.parametrize(("code", "reason"), CODES)
def test_a_failed_adopt_has_a_reason(calls, code, reason):
    assert calls.adopt(ID, 1_000, None).read(code) == reason


@pytest.mark.parametrize("reply", [None, 2, b"OK", [1], [], -3], ids=repr)
def test_a_mutations_reply_of_another_shape_is_an_internal_error(calls, reply):
    for call in (calls.release(ID), calls.adopt(ID, 1_000, None)):
        malformed(call, reply)


@pytest.mark.parametrize("reply", [None, 1, b"OK", [], [1, 2], [-3], [b"1"], [None]], ids=repr)
def test_an_extends_reply_of_another_shape_is_an_internal_error(calls, reply):
    malformed(calls.extend(ID, 1_000), reply)
    malformed(calls.extend_together([(ID, 1_000)]), reply)


def test_release_and_extend_find_the_lock_only_by_its_index(calls):
    for call in (calls.release(ID), calls.extend(ID, 1_000)):
        assert sorted(call.keys) == ["syncguard:id::live", f"syncguard:id:{ID}"]


# -- read -----------------------------------------------------------------------------------------


def test_a_lookup_reads_the_record(calls):
    info = calls.lookup("k", None).read([record(holder="me"), *TIME])
    assert (info.key, info.lock_id, info.fence) == ("k", ID, "000000000000007")
    assert (info.expires_at_ms, info.acquired_at_ms) == (NOW + 5_000, NOW - 5_000)
    assert (info.key_hash, info.lock_id_hash) == (hash_key("k"), hash_key(ID))
    assert info.holder == "me"


def test_a_lookup_that_found_nothing_is_none(calls):
    assert calls.lookup("k", None).read(None) is None
    assert calls.lookup(None, ID).read(None) is None


def test_is_live_decides_whether_a_record_is_live(calls, monkeypatch):
    asked = []

    def predicate(expires_at_ms, now_ms, tolerance_ms):
        asked.append((expires_at_ms, now_ms, tolerance_ms))
        return False

    for name, module in list(sys.modules.items()):
        if name.startswith("syncguard.redis.") and hasattr(module, "is_live"):
            monkeypatch.setattr(module, "is_live", predicate)
    assert calls.lookup("k", None).read([record(), *TIME]) is None
    assert asked == [(NOW + 5_000, redis_server_time_ms(tuple(TIME)), TIME_TOLERANCE_MS)]


@pytest.mark.parametrize(("expired_for_ms", "live"), [(-1, True), (999, True), (1_000, False)])
def test_a_record_is_live_until_the_tolerance_ends(calls, expired_for_ms, live):
    reply = [record(expiresAtMs=NOW - expired_for_ms), *TIME]
    assert (calls.lookup("k", None).read(reply) is not None) is live
    assert (calls.lookup(None, ID).read(reply) is not None) is live


@pytest.mark.parametrize(
    "stored",
    [b"not json", b"[]", b"7", b"{}", b"null", record(expiresAtMs="soon"), b"\xff\xfe", None],
    ids=repr,
)
def test_the_error_of_a_malformed_record_does_not_quote_it(calls, stored):
    text = malformed(calls.lookup("k", None), [stored, *TIME])
    assert "json" not in text


@pytest.mark.parametrize("reply", [0, [], [record()], [record(), 1, 2, 3]], ids=repr)
def test_a_lookup_reply_of_another_shape_is_an_internal_error(calls, reply):
    malformed(calls.lookup("k", None), reply)


def test_a_list_omits_missing_and_expired_locks(calls):
    call = calls.live_locks(calls.names.spaces()[0], 0, 10)
    page = call.read([*TIME, [record(), None, record(expiresAtMs=1)], 7])
    assert [info.key for info in page.locks] == ["k"]
    assert (page.total, page.now_ms) == (7, redis_server_time_ms(tuple(TIME)))


BAD_LISTS = [None, [], [b"1", b"2", []], [b"1", b"2", 3], [b"1", 2]]


@pytest.mark.parametrize("reply", BAD_LISTS, ids=repr)
def test_a_list_of_another_shape_is_an_internal_error(calls, reply):
    malformed(calls.live_locks(calls.names.spaces()[0], 0, 10), reply)


@pytest.mark.parametrize("reply", [None, [1], [b"1", b"2"]], ids=repr)
def test_counts_of_another_shape_are_an_internal_error(calls, reply):
    malformed(calls.counts(calls.names.spaces()[0]), reply)


def test_sanitizing_removes_key_and_lock_id(calls):
    info = calls.lookup("k", None).read([record(), *TIME])
    assert type(sanitized(info)) is LockInfo
    assert ID not in str(sanitized(info))


def test_cleanup_is_off_by_default_and_uses_the_guard_time():
    assert str(CLEANUP_GUARD_MS) not in Calls().is_locked("k").args
    assert str(CLEANUP_GUARD_MS) in Calls(cleanup_in_is_locked=True).is_locked("k").args


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"cleanup_in_is_locked": 1},
        {"cleanup_in_is_locked": "yes"},
        {"fence_floor": "tai"},
        {"fence_floor": True},
        {"hash_secret": ""},
        {"hash_secret": b""},
        {"hash_secret": 7},
        {"key_prefix": "app:id"},
    ],
    ids=repr,
)
def test_bad_options_are_refused(options):
    with pytest.raises(LockError) as caught:
        Calls(**options)
    assert caught.value.code == "InvalidArgument"


def test_a_secret_changes_every_hash():
    info = Calls(hash_secret="s").lookup("k", None).read([record(), *TIME])
    assert info.key_hash != hash_key("k")
    assert info.lock_id_hash != hash_key(ID)
    assert Calls(hash_secret=b"s").hash("k") == Calls(hash_secret="s").hash("k")


# -- scripts --------------------------------------------------------------------------------------

ALL_SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, scripts.Script)]


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda s: s.name)
def test_every_script_starts_with_its_arguments_and_results(script):
    head = script.text.split("\n\n")[0] if "\n\n" in script.text else script.text
    assert head.startswith("-- ")
    assert "-- KEYS[1]" in script.text
    assert "-- returns " in script.text


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda s: s.name)
def test_every_script_that_takes_a_lock_id_checks_the_owner(script):
    code = script.text
    if "-- ARGV[1] lockId" in code and script.name != "acquire":
        assert ".lockId ~= ARGV[1]" in code
    if script is scripts.ACQUIRE:
        assert "data.lockId == ARGV[1]" in code


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda s: s.name)
def test_no_script_deletes_or_expires_a_fence_counter(script):
    """KEYS[3] of acquire is the only fence counter that a script gets."""
    if script is scripts.ACQUIRE:
        for line in script.text.splitlines():
            if "KEYS[3]" in line and not line.startswith("--"):
                assert "'INCR'" in line or ("'SET'" in line and "PX" not in line)
    else:
        assert "fence:" not in script.text


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda s: s.name)
def test_locks_are_written_with_their_ttl_in_one_command(script):
    """Only the fence counter, KEYS[3] of acquire, is written without a TTL."""
    writes = [line for line in script.text.splitlines() if re.search(r"\bcall\('SET'", line)]
    assert writes or script not in (scripts.ACQUIRE, scripts.ADOPT, scripts.EXTEND)
    for line in writes:
        assert "'PXAT'" in line or "'PX'" in line or "KEYS[3]" in line
    assert "'EXPIRE'" not in script.text
