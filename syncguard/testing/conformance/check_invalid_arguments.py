"""Bad input: every operation that takes it raises ``InvalidArgument``, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from syncguard.backend import ListsLocks, LockBackend
from syncguard.constants import MAX_KEY_LENGTH_BYTES, MAX_TTL_MS
from syncguard.errors import LockError
from syncguard.keys import generate_lock_id
from syncguard.testing.conformance.fixtures import LONG_MS, ConformanceFixtures, acquired

Operation = Callable[[Any, Any], object]

BAD_KEYS: Final[dict[str, object]] = {
    "empty": "",
    "one byte too long": "k" * (MAX_KEY_LENGTH_BYTES + 1),
    "too long in UTF-8": "é" * (MAX_KEY_LENGTH_BYTES // 2) + "x",
    "huge": "k" * 300_000,
    "lone surrogate": "a\ud800b",
    "NUL": "a\0b",
    "bytes": b"key",
    "number": 42,
    "None": None,
    "list": ["key"],
    "truth": True,
}
BAD_TTLS: Final[dict[str, object]] = {
    "zero": 0,
    "negative": -1,
    "float": 1000.0,
    "fraction": 0.5,
    "truth": True,
    "text": "1000",
    "None": None,
    "not a number": float("nan"),
    "endless": float("inf"),
    "too long": MAX_TTL_MS + 1,
}
BAD_LOCK_IDS: Final[dict[str, object]] = {
    "empty": "",
    "too short": "A" * 21,
    "too long": "A" * 23,
    "trailing newline": "A" * 22 + "\n",
    "newline inside": "A" * 21 + "\n",
    "padded": "A" * 20 + "==",
    "plus and slash": "A" * 20 + "+/",
    "letters of another script": "\N{CYRILLIC CAPITAL LETTER A}" * 22,
    "digits of another script": "\N{ARABIC-INDIC DIGIT ONE}" * 22,
    "lone surrogate": "A" * 21 + "\ud800",
    "bytes": b"A" * 22,
    "number": 42,
    "None": None,
}
BAD_HOLDERS: Final[dict[str, object]] = {
    "empty": "",
    "line break": "a\nb",
    "control character": "a\x1b[31m",
    "too long": "h" * 257,
    "lone surrogate": "a\ud800b",
    "number": 7,
    "bytes": b"me",
}
BAD_COUNTS: Final[dict[str, object]] = {
    "negative": -1,
    "float": 1.0,
    "truth": True,
    "text": "1",
    "None": None,
}

TAKES_KEY: Final[dict[str, Operation]] = {
    "acquire": lambda b, key: b.acquire(key, LONG_MS),
    "is_locked": lambda b, key: b.is_locked(key),
    "lookup": lambda b, key: b.lookup(key=key),
}
TAKES_LOCK_ID: Final[dict[str, Operation]] = {
    "release": lambda b, lock_id: b.release(lock_id),
    "extend": lambda b, lock_id: b.extend(lock_id, LONG_MS),
    "adopt": lambda b, lock_id: b.adopt(lock_id, LONG_MS),
    "lookup": lambda b, lock_id: b.lookup(lock_id=lock_id),
}
TAKES_TTL: Final[dict[str, Operation]] = {
    "acquire": lambda b, ttl_ms: b.acquire("free", ttl_ms),
    "extend": lambda b, ttl_ms: b.extend(generate_lock_id(), ttl_ms),
    "adopt": lambda b, ttl_ms: b.adopt(generate_lock_id(), ttl_ms),
}
TAKES_HOLDER: Final[dict[str, Operation]] = {
    "acquire": lambda b, holder: b.acquire("free", LONG_MS, holder=holder),
    "adopt": lambda b, holder: b.adopt(generate_lock_id(), LONG_MS, holder=holder),
}
TAKES_COUNT: Final[dict[str, Operation]] = {
    "limit": lambda b, count: b.live_locks(limit=count),
    "offset": lambda b, count: b.live_locks(offset=count),
    "limit of a page": lambda b, count: b.page_raw(limit=count),
    "offset of a page": lambda b, count: b.page_raw(offset=count),
}


def refused(backend: object, operations: dict[str, Operation], value: object) -> None:
    """Check that every operation refuses the value with ``InvalidArgument``."""
    for name, operation in operations.items():
        with pytest.raises(LockError) as caught:
            operation(backend, value)
        assert caught.value.code == "InvalidArgument", name


class ValidationConformance(ConformanceFixtures):
    """What is refused."""

    @pytest.mark.parametrize("value", BAD_KEYS.values(), ids=BAD_KEYS)
    def test_a_bad_key_is_refused(self, backend: LockBackend, value: object) -> None:
        refused(backend, TAKES_KEY, value)

    @pytest.mark.parametrize("value", BAD_LOCK_IDS.values(), ids=BAD_LOCK_IDS)
    def test_a_malformed_lock_id_is_refused(self, backend: LockBackend, value: object) -> None:
        refused(backend, TAKES_LOCK_ID, value)

    @pytest.mark.parametrize("value", BAD_TTLS.values(), ids=BAD_TTLS)
    def test_a_bad_ttl_is_refused(self, backend: LockBackend, value: object) -> None:
        refused(backend, TAKES_TTL, value)

    @pytest.mark.parametrize("value", BAD_HOLDERS.values(), ids=BAD_HOLDERS)
    def test_a_bad_holder_label_is_refused(self, backend: LockBackend, value: object) -> None:
        refused(backend, TAKES_HOLDER, value)

    @pytest.mark.parametrize("value", BAD_COUNTS.values(), ids=BAD_COUNTS)
    def test_a_bad_limit_or_offset_is_refused(self, listing: ListsLocks, value: object) -> None:
        refused(listing, TAKES_COUNT, value)

    def test_a_lookup_takes_exactly_one_of_key_and_lock_id(self, backend: LockBackend) -> None:
        for arguments in ({}, {"key": "k", "lock_id": generate_lock_id()}):
            refused(backend, {"lookup": lambda b, a: b.lookup(**a)}, arguments)

    @pytest.mark.parametrize("mark", ["key_hash", "fence", "lock_id_hash"])
    @pytest.mark.parametrize("value", [None, 1, b"x", ""], ids=repr)
    def test_a_force_release_without_one_of_its_three_values_is_refused(
        self, listing: ListsLocks, mark: str, value: object
    ) -> None:
        marks: dict[str, object] = {"key_hash": "0" * 24, "fence": "0" * 15}
        marks |= {"lock_id_hash": "0" * 24, mark: value}
        refused(listing, {"force_release": lambda b, m: b.force_release(**m)}, marks)

    def test_a_signal_without_is_set_is_refused(self, backend: LockBackend) -> None:
        refused(backend, {"acquire": lambda b, s: b.acquire("free", signal=s)}, object())

    def test_refused_input_changes_nothing(self, backend: LockBackend) -> None:
        lock = acquired(backend, "held")
        before = backend.lookup(key="held")
        refused(backend, {"extend": lambda b, ttl: b.extend(lock.lock_id, ttl)}, 0)
        refused(backend, {"release": lambda b, i: b.release(i)}, lock.lock_id + "\n")
        refused(backend, TAKES_TTL, -1)
        assert backend.lookup(key="held") == before
