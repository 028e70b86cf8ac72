"""Arguments and results: frozen, with slots, and without raw identifiers in the repr."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from syncguard import (
    Acquired,
    Acquisition,
    BackendCapabilities,
    Contended,
    ErrorContext,
    ExtendResult,
    LockError,
    LockEvent,
    LockInfo,
    LockInfoDebug,
    NotAdopted,
    ReleaseErrorContext,
    ReleaseResult,
    has_fence,
)
from syncguard._lock.release_after_block import Disposal
from syncguard.aio import AsyncAcquired
from syncguard.types import CONTENDED

ID = "A" * 22


def acquired(kind=Acquired, backend=None):
    return kind(ID, "000000000000001", 2_000, "raw-key", 1_000, 0.0, Disposal(), backend)


VALUES = [
    Acquisition(),
    BackendCapabilities("redis", True, "server"),
    Contended(),
    ErrorContext("raw-key", ID),
    ExtendResult(True, 1),
    LockEvent("acquire", "ok", key="raw-key", lock_id=ID),
    LockInfo("h" * 24, "i" * 24, 2, 1, "000000000000001"),
    LockInfoDebug("h" * 24, "i" * 24, 2, 1, "000000000000001", key="raw-key", lock_id=ID),
    NotAdopted(),
    ReleaseErrorContext("raw-key", ID, "handle"),
    ReleaseResult(True),
    acquired(),
    acquired(AsyncAcquired),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_are_frozen(value):
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, "changed")


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_have_slots(value):
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_no_value_shows_a_raw_key_or_a_lock_id(value):
    for shown in (repr(value), str(value), f"{value}"):
        assert "raw-key" not in shown
        assert ID not in shown


def test_the_raw_record_has_all_that_the_sanitized_one_has():
    sanitized = {field.name for field in dataclasses.fields(LockInfo)}
    raw = {field.name for field in dataclasses.fields(LockInfoDebug)}
    assert raw == sanitized | {"key", "lock_id"}


def test_a_sanitized_record_has_hashes_times_fence_and_label():
    names = [field.name for field in dataclasses.fields(LockInfo)]
    assert names == [
        "key_hash",
        "lock_id_hash",
        "expires_at_ms",
        "acquired_at_ms",
        "fence",
        "holder",
    ]


def test_results_with_different_reasons_are_equal():
    assert ReleaseResult(False, "expired") == ReleaseResult(False)
    assert ExtendResult(False, None, "not-found") == ExtendResult(False)


def test_a_successful_release_has_no_expiry():
    assert not hasattr(ReleaseResult(True), "expires_at_ms")


def test_contention_has_only_ok_and_a_reason():
    assert (CONTENDED.ok, CONTENDED.reason) == (False, "locked")
    assert {field.name for field in dataclasses.fields(Contended)} == {"ok", "reason"}


@pytest.mark.parametrize(
    "result",
    [acquired(), acquired(AsyncAcquired), ReleaseResult(True), ExtendResult(True, 1)],
    ids=lambda result: type(result).__name__,
)
def test_a_successful_result_is_true(result):
    assert result.ok
    assert bool(result) is True


@pytest.mark.parametrize(
    "result",
    [Contended(), NotAdopted(), ReleaseResult(False), ExtendResult(False)],
    ids=lambda result: type(result).__name__,
)
def test_a_failed_result_is_false(result):
    assert not result.ok
    assert bool(result) is False


def test_contention_in_a_block_does_nothing():
    with CONTENDED as result:
        assert result is CONTENDED

    async def in_async_block():
        async with CONTENDED as result:
            return result

    assert asyncio.run(in_async_block()) is CONTENDED


def test_only_an_acquired_lock_has_a_fence():
    assert has_fence(acquired())
    assert not has_fence(CONTENDED)


def test_the_default_policy_is_the_specified_one():
    assert dataclasses.asdict(Acquisition()) == {
        "max_retries": 10,
        "retry_delay_ms": 100,
        "backoff": "exponential",
        "jitter": "equal",
        "timeout_ms": 5_000,
    }


@pytest.mark.parametrize("name", ["max_retries", "retry_delay_ms", "timeout_ms"])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None], ids=repr)
def test_the_numbers_of_a_policy_must_be_whole_and_not_negative(name, value):
    with pytest.raises(LockError) as caught:
        Acquisition(**{name: value})
    assert caught.value.code == "InvalidArgument"
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize("name", ["backoff", "jitter"])
@pytest.mark.parametrize("value", ["linear", None, 1, ["fixed"]], ids=repr)
def test_an_unknown_backoff_or_jitter_is_refused(name, value):
    with pytest.raises(LockError) as caught:
        Acquisition(**{name: value})
    assert caught.value.code == "InvalidArgument"
