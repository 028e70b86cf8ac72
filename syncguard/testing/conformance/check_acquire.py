"""Acquire: one attempt; one caller gets the lock, and all others get a ``Contended`` value."""

from __future__ import annotations

from syncguard.backend import LockBackend
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.keys import validate_lock_id
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    acquired,
    at_once,
    eventually,
    expired,
)
from syncguard.types import Contended


class AcquireConformance(ConformanceFixtures):
    """What ``acquire`` promises."""

    def test_the_backend_declares_its_capabilities(self, backend: LockBackend) -> None:
        assert backend.capabilities.backend
        assert backend.capabilities.supports_fencing is True
        assert backend.capabilities.time_authority in ("server", "client")

    def test_a_free_lock_is_acquired(self, backend: LockBackend) -> None:
        assert backend.acquire("free", LONG_MS).ok is True

    def test_a_held_lock_is_refused_with_a_value(self, backend: LockBackend) -> None:
        acquired(backend, "held")
        result = backend.acquire("held", LONG_MS)
        assert isinstance(result, Contended)
        assert (result.ok, result.reason) == (False, "locked")

    def test_a_refused_acquire_leaves_the_holder_as_it_is(self, backend: LockBackend) -> None:
        acquired(backend, "held")
        before = backend.lookup(key="held")
        backend.acquire("held", 1)
        assert backend.lookup(key="held") == before

    def test_locks_on_different_keys_do_not_exclude_each_other(self, backend: LockBackend) -> None:
        acquired(backend, "one")
        assert backend.acquire("another", LONG_MS).ok

    def test_backends_on_one_store_exclude_each_other(self, make_backend: MakeBackend) -> None:
        mine, theirs = make_backend(), make_backend()
        acquired(mine, "shared")
        assert not theirs.acquire("shared", LONG_MS).ok
        assert theirs.is_locked("shared")

    def test_an_expired_lock_can_be_acquired_again(self, backend: LockBackend) -> None:
        expired(backend, "k")
        eventually(lambda: backend.acquire("k", LONG_MS).ok)

    def test_every_acquisition_has_a_lock_id_of_its_own(self, backend: LockBackend) -> None:
        ids = set()
        for _ in range(20):
            lock = acquired(backend, "k")
            ids.add(validate_lock_id(lock.lock_id))
            lock.release()
        assert len(ids) == 20

    def test_the_expiry_is_one_ttl_after_the_acquisition(self, backend: LockBackend) -> None:
        lock = acquired(backend, "k", 45_678)
        info = backend.lookup(key="k")
        assert info is not None
        assert lock.expires_at_ms == info.expires_at_ms == info.acquired_at_ms + 45_678

    def test_without_a_ttl_the_default_is_used(self, backend: LockBackend) -> None:
        backend.acquire("k")
        info = backend.lookup(key="k")
        assert info is not None
        assert info.expires_at_ms - info.acquired_at_ms == DEFAULT_TTL_MS

    def test_the_holder_label_is_stored_with_the_lock(self, backend: LockBackend) -> None:
        backend.acquire("k", LONG_MS, holder="worker 7 on höst-3")
        info = backend.lookup(key="k")
        assert info is not None
        assert info.holder == "worker 7 on höst-3"

    def test_without_a_label_there_is_no_holder(self, backend: LockBackend) -> None:
        backend.acquire("k", LONG_MS)
        info = backend.lookup(key="k")
        assert info is not None
        assert info.holder is None

    def test_of_many_concurrent_acquires_exactly_one_succeeds(self, backend: LockBackend) -> None:
        results = at_once(lambda: backend.acquire("wanted", LONG_MS).ok)
        assert sorted(results) == [False] * 7 + [True]
