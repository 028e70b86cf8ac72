"""Force-release, a part of the listing: an administrator releases exactly the holder they saw."""

from __future__ import annotations

import pytest

from syncguard.backend import ListsLocks, LockBackend, LockInfo, ReleaseResult
from syncguard.testing.conformance.fixtures import ConformanceFixtures, acquired


def _seen(backend: LockBackend, key: str) -> LockInfo:
    info = backend.lookup(key=key)
    assert info is not None
    return info


def _force(listing: ListsLocks, seen: LockInfo) -> ReleaseResult:
    return listing.force_release(seen.key_hash, fence=seen.fence, lock_id_hash=seen.lock_id_hash)


class ForceReleaseConformance(ConformanceFixtures):
    """What ``force_release`` promises."""

    def test_the_holder_that_was_seen_is_released(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        lock = acquired(backend, "stuck")
        assert _force(listing, _seen(backend, "stuck")).ok
        assert not backend.is_locked("stuck")
        assert not backend.extend(lock.lock_id, 1000).ok

    @pytest.mark.parametrize("wrong", ["key_hash", "fence", "lock_id_hash"])
    def test_key_hash_fence_and_lock_id_hash_must_all_match(
        self, backend: LockBackend, listing: ListsLocks, wrong: str
    ) -> None:
        acquired(backend, "k")
        seen = _seen(backend, "k")
        marks = {name: getattr(seen, name) for name in ("key_hash", "fence", "lock_id_hash")}
        marks[wrong] = "0" * len(marks[wrong])
        assert not listing.force_release(**marks).ok
        assert backend.is_locked("k")

    def test_an_outdated_page_cannot_release_the_lock_of_the_next_holder(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        first = acquired(backend, "k")
        seen = _seen(backend, "k")
        first.release()
        acquired(backend, "k")
        assert not _force(listing, seen).ok
        assert backend.is_locked("k")

    def test_a_lock_that_was_adopted_meanwhile_is_not_released(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        lock = acquired(backend, "k")
        seen = _seen(backend, "k")
        backend.adopt(lock.lock_id, 60_000)
        assert not _force(listing, seen).ok
        assert backend.is_locked("k")

    def test_other_locks_stay_held(self, backend: LockBackend, listing: ListsLocks) -> None:
        acquired(backend, "stuck")
        acquired(backend, "busy")
        _force(listing, _seen(backend, "stuck"))
        assert backend.is_locked("busy")
