"""Adopt: another caller takes over the lock, with the same fence and a new lock id."""

from __future__ import annotations

from syncguard.backend import LockBackend
from syncguard.keys import generate_lock_id, validate_lock_id
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    acquired,
    at_once,
    expired,
)


class AdoptConformance(ConformanceFixtures):
    """What ``adopt`` promises."""

    def test_adopting_keeps_the_fence_and_returns_a_new_lock_id(self, backend: LockBackend) -> None:
        old = acquired(backend, "k")
        new = backend.adopt(old.lock_id, LONG_MS)
        assert new.ok
        assert new.fence == old.fence
        assert validate_lock_id(new.lock_id) != old.lock_id

    def test_the_lock_stays_held_when_it_is_adopted(self, backend: LockBackend) -> None:
        backend.adopt(acquired(backend, "k").lock_id, LONG_MS)
        assert backend.is_locked("k")
        assert not backend.acquire("k", LONG_MS).ok

    def test_the_new_id_releases_the_lock(self, backend: LockBackend) -> None:
        new = backend.adopt(acquired(backend, "k").lock_id, LONG_MS)
        assert new.ok
        assert new.release().ok
        assert not backend.is_locked("k")

    def test_the_old_lock_id_is_invalid_after_adopt(self, backend: LockBackend) -> None:
        old = acquired(backend, "k")
        backend.adopt(old.lock_id, LONG_MS)
        assert not backend.adopt(old.lock_id, LONG_MS).ok
        assert not backend.extend(old.lock_id, LONG_MS).ok
        assert not backend.release(old.lock_id).ok
        assert backend.lookup(lock_id=old.lock_id) is None
        assert backend.is_locked("k")

    def test_adopting_replaces_the_ttl(self, backend: LockBackend) -> None:
        old = acquired(backend, "k", LONG_MS)
        new = backend.adopt(old.lock_id, 10_000)
        info = backend.lookup(key="k")
        assert new.ok
        assert info is not None
        assert new.expires_at_ms == info.expires_at_ms < old.expires_at_ms

    def test_adopting_keeps_the_label_unless_a_new_one_is_given(self, backend: LockBackend) -> None:
        first = backend.acquire("k", LONG_MS, holder="publisher")
        assert first.ok
        second = backend.adopt(first.lock_id, LONG_MS)
        assert second.ok
        kept = backend.lookup(key="k")
        assert kept is not None
        assert kept.holder == "publisher"
        backend.adopt(second.lock_id, LONG_MS, holder="worker")
        renamed = backend.lookup(key="k")
        assert renamed is not None
        assert renamed.holder == "worker"

    def test_an_unknown_id_adopts_nothing(self, backend: LockBackend) -> None:
        assert not backend.adopt(generate_lock_id(), LONG_MS).ok

    def test_an_expired_lock_is_not_adopted(self, backend: LockBackend) -> None:
        lock = expired(backend, "k")
        assert not backend.adopt(lock.lock_id, LONG_MS).ok
        assert not backend.is_locked("k")

    def test_of_many_concurrent_adopts_exactly_one_succeeds(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        results = at_once(lambda: backend.adopt(lock.lock_id, LONG_MS).ok)
        assert sorted(results) == [False] * 7 + [True]
