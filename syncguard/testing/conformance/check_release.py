"""Release: at most once, and never the lock of another holder."""

from __future__ import annotations

from syncguard.backend import LockBackend
from syncguard.keys import generate_lock_id
from syncguard.testing.conformance.fixtures import (
    ConformanceFixtures,
    MakeBackend,
    acquired,
    at_once,
    expired,
)
from syncguard.types import ReleaseResult


class ReleaseConformance(ConformanceFixtures):
    """What ``release`` promises."""

    def test_releasing_frees_the_lock(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        assert backend.release(lock.lock_id) == ReleaseResult(True)
        assert not backend.is_locked("k")
        acquired(backend, "k")

    def test_the_handle_releases_too(self, backend: LockBackend) -> None:
        assert acquired(backend, "k").release().ok
        assert not backend.is_locked("k")

    def test_any_backend_on_the_store_can_release_by_the_id(
        self, make_backend: MakeBackend
    ) -> None:
        lock = acquired(make_backend(), "k")
        assert make_backend().release(lock.lock_id).ok

    def test_the_second_release_finds_nothing(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        backend.release(lock.lock_id)
        assert backend.release(lock.lock_id) == ReleaseResult(False)

    def test_an_unknown_id_releases_nothing_and_is_no_error(self, backend: LockBackend) -> None:
        acquired(backend, "k")
        assert backend.release(generate_lock_id()) == ReleaseResult(False)
        assert backend.is_locked("k")

    def test_an_expired_lock_is_not_released(self, backend: LockBackend) -> None:
        lock = expired(backend, "k")
        assert backend.release(lock.lock_id) == ReleaseResult(False)

    def test_a_late_release_does_not_change_the_lock_of_the_next_holder(
        self, backend: LockBackend
    ) -> None:
        stale = expired(backend, "k")
        acquired(backend, "k")
        before = backend.lookup(key="k")
        assert not backend.release(stale.lock_id).ok
        assert backend.lookup(key="k") == before

    def test_a_repeated_release_does_not_release_the_next_holder(
        self, backend: LockBackend
    ) -> None:
        first = acquired(backend, "k")
        backend.release(first.lock_id)
        second = acquired(backend, "k")
        assert not backend.release(first.lock_id).ok
        assert backend.release(second.lock_id).ok

    def test_releasing_one_lock_leaves_the_others(self, backend: LockBackend) -> None:
        one, _other = acquired(backend, "one"), acquired(backend, "other")
        backend.release(one.lock_id)
        assert backend.is_locked("other")

    def test_of_many_concurrent_releases_exactly_one_succeeds(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        results = at_once(lambda: backend.release(lock.lock_id).ok)
        assert sorted(results) == [False] * 7 + [True]
