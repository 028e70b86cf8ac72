"""Keys at their limits: long keys, Unicode keys, and different forms of the same key."""

from __future__ import annotations

import unicodedata

import pytest

from syncguard.backend import LockBackend
from syncguard.constants import MAX_KEY_LENGTH_BYTES
from syncguard.diagnostics import get_by_key_raw
from syncguard.keys import hash_key
from syncguard.testing.conformance.fixtures import LONG_MS, ConformanceFixtures, acquired

LONGEST = "k" * MAX_KEY_LENGTH_BYTES
LONGEST_UNICODE = "é" * (MAX_KEY_LENGTH_BYTES // 2)
ODD = [
    " ",
    "two words",
    "a:b:c",
    ":",
    "::",
    "*?[a-z]",
    "{tag}",
    "%s %(x)s",
    "line\nbreak",
    "日本語キー",
    "🔒",
    "\"quoted\" \\ 'key'",
    "identity",
    "fences",
    "ID:upper",
]


class KeyConformance(ConformanceFixtures):
    """What keys may be."""

    @pytest.mark.parametrize(
        "key", [LONGEST, LONGEST_UNICODE, *ODD], ids=lambda key: ascii(key[:16])
    )
    def test_every_valid_key_can_be_locked_looked_up_extended_and_released(
        self, backend: LockBackend, key: str
    ) -> None:
        lock = acquired(backend, key)
        assert backend.is_locked(key)
        assert not backend.acquire(key, LONG_MS).ok
        info, raw = backend.lookup(key=key), get_by_key_raw(backend, key)
        assert info is not None
        assert raw is not None
        assert info.key_hash == hash_key(key)
        assert raw.key == key
        assert backend.lookup(lock_id=lock.lock_id) == info
        assert backend.extend(lock.lock_id, LONG_MS).ok
        assert backend.release(lock.lock_id).ok
        assert not backend.is_locked(key)

    def test_two_longest_keys_that_differ_in_the_last_letter_are_two_locks(
        self, backend: LockBackend
    ) -> None:
        acquired(backend, LONGEST[:-1] + "a")
        assert backend.acquire(LONGEST[:-1] + "b", LONG_MS).ok

    def test_keys_that_are_equal_in_nfc_are_one_lock(self, backend: LockBackend) -> None:
        composed = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
        decomposed = unicodedata.normalize("NFD", composed)
        lock = acquired(backend, composed)
        assert decomposed != composed
        assert backend.is_locked(decomposed)
        assert not backend.acquire(decomposed, LONG_MS).ok
        assert backend.lookup(key=decomposed) == backend.lookup(lock_id=lock.lock_id)

    def test_the_limit_counts_the_bytes_after_normalising(self, backend: LockBackend) -> None:
        # 256 letters of two bytes each once composed; 768 bytes before.
        decomposed = unicodedata.normalize("NFD", LONGEST_UNICODE)
        assert len(decomposed.encode()) > MAX_KEY_LENGTH_BYTES
        acquired(backend, decomposed)
        assert backend.is_locked(LONGEST_UNICODE)

    def test_case_makes_a_different_key(self, backend: LockBackend) -> None:
        acquired(backend, "Key")
        assert not backend.is_locked("key")
