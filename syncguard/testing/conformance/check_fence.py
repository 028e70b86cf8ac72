"""Fences: fifteen digits, and larger with every acquisition of a key."""

from __future__ import annotations

import re

from syncguard._lock.handles import has_fence
from syncguard.backend import LockBackend
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    acquired,
    expired,
)


class FenceConformance(ConformanceFixtures):
    """What fences promise."""

    def test_a_fence_has_fifteen_digits(self, backend: LockBackend) -> None:
        assert re.fullmatch(r"[0-9]{15}", acquired(backend, "k").fence)

    def test_an_acquired_lock_has_a_fence_and_a_refused_one_has_none(
        self, backend: LockBackend
    ) -> None:
        assert has_fence(backend.acquire("k", LONG_MS))
        assert not has_fence(backend.acquire("k", LONG_MS))

    def test_fences_grow_with_every_acquisition(self, backend: LockBackend) -> None:
        fences = []
        for _ in range(12):
            lock = acquired(backend, "k")
            fences.append(lock.fence)
            lock.release()
        assert fences == sorted(set(fences))

    def test_fences_grow_after_an_expiry(self, backend: LockBackend) -> None:
        first = expired(backend, "k")
        assert acquired(backend, "k").fence > first.fence

    def test_fences_grow_across_backends(self, make_backend: MakeBackend) -> None:
        first = acquired(make_backend(), "k")
        first.release()
        assert acquired(make_backend(), "k").fence > first.fence

    def test_reading_and_extending_do_not_change_the_fence(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        backend.is_locked("k")
        backend.extend(lock.lock_id, LONG_MS)
        info = backend.lookup(lock_id=lock.lock_id)
        assert info is not None
        assert info.fence == lock.fence
