"""Extend: a new TTL from now, only for the holder, and never for an expired lock."""

from __future__ import annotations

from syncguard.backend import LockBackend
from syncguard.keys import generate_lock_id
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    SHORT_MS,
    ConformanceFixtures,
    acquired,
    eventually,
    expired,
)
from syncguard.types import ExtendResult


class ExtendConformance(ConformanceFixtures):
    """What ``extend`` promises."""

    def test_an_extended_lock_is_still_held_after_its_first_ttl(self, backend: LockBackend) -> None:
        def extended_in_time() -> bool:
            lock = backend.acquire("k", 300)
            return lock.ok and backend.extend(lock.lock_id, LONG_MS).ok

        eventually(extended_in_time)
        expired(backend, "hourglass", 300)
        assert backend.is_locked("k")

    def test_the_new_ttl_replaces_the_old_one(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k", LONG_MS)
        shorter = backend.extend(lock.lock_id, 10_000)
        assert shorter.expires_at_ms is not None
        # If the TTL were added, the expiry would be later; a replaced TTL makes it earlier.
        assert shorter.expires_at_ms < lock.expires_at_ms

    def test_a_longer_ttl_makes_the_expiry_later(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k", 10_000)
        longer = backend.extend(lock.lock_id, LONG_MS)
        assert longer.expires_at_ms is not None
        assert longer.expires_at_ms > lock.expires_at_ms

    def test_the_returned_expiry_is_the_stored_one(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        result = backend.extend(lock.lock_id, 34_567)
        info = backend.lookup(key="k")
        assert info is not None
        assert result == ExtendResult(True, info.expires_at_ms)

    def test_a_shortened_lock_expires_after_its_new_ttl(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k", LONG_MS)
        backend.extend(lock.lock_id, SHORT_MS)
        eventually(lambda: not backend.is_locked("k"))

    def test_the_handle_extends_too(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k", 10_000)
        assert lock.extend(LONG_MS).ok

    def test_extending_keeps_everything_but_the_expiry(self, backend: LockBackend) -> None:
        lock = backend.acquire("k", LONG_MS, holder="me")
        before = backend.lookup(key="k")
        assert lock.ok
        assert before is not None
        backend.extend(lock.lock_id, 30_000)
        after = backend.lookup(key="k")
        assert after is not None
        assert (after.key_hash, after.lock_id_hash, after.fence, after.holder) == (
            before.key_hash,
            before.lock_id_hash,
            before.fence,
            before.holder,
        )
        assert after.acquired_at_ms == before.acquired_at_ms

    def test_a_lock_can_be_extended_several_times(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        assert all(backend.extend(lock.lock_id, LONG_MS).ok for _ in range(5))
        assert backend.release(lock.lock_id).ok

    def test_an_unknown_id_extends_nothing(self, backend: LockBackend) -> None:
        assert backend.extend(generate_lock_id(), LONG_MS) == ExtendResult(False)

    def test_a_released_lock_is_not_extended(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        backend.release(lock.lock_id)
        assert backend.extend(lock.lock_id, LONG_MS) == ExtendResult(False)
        assert not backend.is_locked("k")

    def test_an_expired_lock_is_not_extended(self, backend: LockBackend) -> None:
        lock = expired(backend, "k")
        assert backend.extend(lock.lock_id, LONG_MS) == ExtendResult(False)
        assert not backend.is_locked("k")
        assert backend.lookup(lock_id=lock.lock_id) is None

    def test_a_late_extend_does_not_change_the_lock_of_the_next_holder(
        self, backend: LockBackend
    ) -> None:
        stale = expired(backend, "k")
        acquired(backend, "k")
        before = backend.lookup(key="k")
        assert not backend.extend(stale.lock_id, 1).ok
        assert backend.lookup(key="k") == before
