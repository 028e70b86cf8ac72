"""Leaving ``with backend.acquire(...)`` releases, never raises, and may be repeated."""

from __future__ import annotations

import pytest

from syncguard.backend import LockBackend
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    acquired,
    expired,
)


class DisposalConformance(ConformanceFixtures):
    """What leaving a block promises, as long as the store answers."""

    def test_leaving_the_block_releases(self, backend: LockBackend) -> None:
        with backend.acquire("k", LONG_MS) as result:
            assert result.ok
            assert backend.is_locked("k")
        assert not backend.is_locked("k")

    def test_an_error_in_the_block_releases_the_lock_and_is_raised(
        self, backend: LockBackend
    ) -> None:
        with pytest.raises(ZeroDivisionError), backend.acquire("k", LONG_MS):
            raise ZeroDivisionError
        assert not backend.is_locked("k")

    def test_leaving_a_refused_block_does_nothing(self, backend: LockBackend) -> None:
        acquired(backend, "k")
        with backend.acquire("k", LONG_MS) as result:
            assert not result.ok
        assert backend.is_locked("k")

    def test_an_adopted_lock_is_released_on_leaving_too(self, backend: LockBackend) -> None:
        adopted = backend.adopt(acquired(backend, "k").lock_id, LONG_MS)
        assert adopted.ok
        with adopted:
            assert backend.is_locked("k")
        assert not backend.is_locked("k")

    def test_leaving_twice_does_not_release_the_next_holder(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k")
        with lock:
            pass
        acquired(backend, "k")
        with lock:
            pass
        assert backend.is_locked("k")

    @pytest.mark.parametrize("gone", ["released", "ran out"])
    def test_leaving_the_block_of_a_lock_that_is_gone_is_no_error(
        self, make_backend: MakeBackend, gone: str
    ) -> None:
        errors: list[object] = []
        backend = make_backend(on_release_error=lambda *error: errors.append(error))
        lock = acquired(backend, "k") if gone == "released" else expired(backend, "k")
        with lock:
            lock.release()
        assert errors == []
