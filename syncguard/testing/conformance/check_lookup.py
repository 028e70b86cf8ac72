"""is_locked, lookup by key and by lock id, and their helpers. All of them only read."""

from __future__ import annotations

import pytest

from syncguard.backend import LockBackend
from syncguard.diagnostics import get_by_id, get_by_id_raw, get_by_key, get_by_key_raw, owns
from syncguard.keys import generate_lock_id, hash_key
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    acquired,
    expired,
)
from syncguard.types import LockInfo, LockInfoDebug


class LookupConformance(ConformanceFixtures):
    """What ``is_locked`` and ``lookup`` promise."""

    def test_a_lock_is_locked_from_acquire_to_release(self, backend: LockBackend) -> None:
        assert backend.is_locked("k") is False
        lock = acquired(backend, "k")
        assert backend.is_locked("k") is True
        lock.release()
        assert backend.is_locked("k") is False

    def test_reading_changes_nothing(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        before = backend.lookup(key="k")
        for _ in range(3):
            backend.is_locked("k")
            backend.lookup(key="k")
            backend.lookup(lock_id=lock.lock_id)
        assert backend.lookup(key="k") == before

    def test_reading_a_free_key_does_not_lock_it(self, backend: LockBackend) -> None:
        backend.is_locked("k")
        backend.lookup(key="k")
        assert backend.acquire("k", LONG_MS).ok

    def test_reading_does_not_extend_a_lock(self, backend: LockBackend) -> None:
        # The helper calls is_locked until the lock has expired.
        expired(backend, "k")

    def test_lookup_by_key_and_by_lock_id_return_the_same(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        by_key, by_id = backend.lookup(key="k"), backend.lookup(lock_id=lock.lock_id)
        assert by_key is not None
        assert by_key == by_id

    def test_a_lookup_returns_fence_and_expiry(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        info = backend.lookup(key="k")
        assert info is not None
        assert (info.fence, info.expires_at_ms) == (lock.fence, lock.expires_at_ms)

    def test_a_lookup_shows_hashes_and_never_the_identifiers(self, backend: LockBackend) -> None:
        lock = acquired(backend, "secret-invoice")
        for info in (backend.lookup(key="secret-invoice"), backend.lookup(lock_id=lock.lock_id)):
            assert type(info) is LockInfo
            assert not hasattr(info, "key")
            assert not hasattr(info, "lock_id")
            assert "secret-invoice" not in repr(info)
            assert lock.lock_id not in repr(info)

    def test_the_hashes_are_those_of_the_specification(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        info = backend.lookup(key="k")
        assert info is not None
        assert info.key_hash == hash_key("k") == backend.hash("k")
        assert info.lock_id_hash == hash_key(lock.lock_id)

    def test_a_free_key_has_no_lock(self, backend: LockBackend) -> None:
        assert backend.lookup(key="free") is None

    def test_an_unknown_id_has_no_lock(self, backend: LockBackend) -> None:
        acquired(backend, "k")
        assert backend.lookup(lock_id=generate_lock_id()) is None

    def test_an_expired_lock_is_not_found_by_its_key(self, backend: LockBackend) -> None:
        expired(backend, "k")
        assert backend.lookup(key="k") is None

    def test_an_expired_lock_is_not_found_by_its_lock_id(self, backend: LockBackend) -> None:
        lock = expired(backend, "k")
        assert backend.lookup(lock_id=lock.lock_id) is None

    def test_a_released_lock_is_not_found(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        lock.release()
        assert backend.lookup(key="k") is None
        assert backend.lookup(lock_id=lock.lock_id) is None

    def test_an_old_id_does_not_find_the_next_holder(self, backend: LockBackend) -> None:
        stale = expired(backend, "k")
        acquired(backend, "k")
        assert backend.lookup(lock_id=stale.lock_id) is None

    def test_the_helpers_look_up_like_the_backend(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        assert get_by_key(backend, "k") == backend.lookup(key="k")
        assert get_by_id(backend, lock.lock_id) == backend.lookup(lock_id=lock.lock_id)

    def test_the_raw_helpers_add_the_identifiers(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        for raw in (get_by_key_raw(backend, "k"), get_by_id_raw(backend, lock.lock_id)):
            assert isinstance(raw, LockInfoDebug)
            assert (raw.key, raw.lock_id) == ("k", lock.lock_id)
            assert raw.fence == lock.fence

    def test_the_raw_helpers_return_none_for_a_free_key_and_an_unknown_id(
        self, backend: LockBackend
    ) -> None:
        assert get_by_key_raw(backend, "k") is None
        assert get_by_id_raw(backend, generate_lock_id()) is None

    @pytest.mark.parametrize("gone", ["released", "ran out"])
    def test_owns_is_true_only_while_the_lock_is_held(
        self, backend: LockBackend, gone: str
    ) -> None:
        lock = acquired(backend, "held")
        assert owns(backend, lock.lock_id) is True
        if gone == "released":
            lock.release()
        else:
            lock = expired(backend, "other")
        assert owns(backend, lock.lock_id) is False
