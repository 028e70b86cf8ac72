"""Listing, an optional part: which locks are live, soonest to expire first, and how many."""

from __future__ import annotations

from syncguard.backend import ListsLocks, LockBackend, LockInfo, is_live, sanitized
from syncguard.keys import hash_key
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    acquired,
    eventually,
    expired,
)


def _five(backend: LockBackend) -> list[str]:
    """Five locks, acquired in no particular order; the hashes of their keys by expiry."""
    for nth in (3, 1, 5, 2, 4):
        acquired(backend, f"lock {nth}", LONG_MS + nth * 10_000)
    return [hash_key(f"lock {nth}") for nth in (1, 2, 3, 4, 5)]


def _hashes(infos: list[LockInfo]) -> list[str]:
    return [info.key_hash for info in infos]


class ListingConformance(ConformanceFixtures):
    """What ``ListsLocks`` promises, where a backend offers it."""

    def test_an_empty_store_lists_nothing(self, listing: ListsLocks) -> None:
        assert listing.live_locks() == []
        assert listing.count_live_locks() == 0

    def test_locks_are_listed_soonest_to_expire_first(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        by_expiry = _five(backend)
        assert _hashes(listing.live_locks()) == by_expiry
        assert listing.count_live_locks() == 5

    def test_the_list_shows_what_a_lookup_shows(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        backend.acquire("k", LONG_MS, holder="me")
        assert listing.live_locks() == [backend.lookup(key="k")]
        assert type(listing.live_locks()[0]) is LockInfo

    def test_limit_and_offset_select_a_page(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        by_expiry = _five(backend)
        assert _hashes(listing.live_locks(limit=2)) == by_expiry[:2]
        assert _hashes(listing.live_locks(limit=2, offset=2)) == by_expiry[2:4]
        assert _hashes(listing.live_locks(limit=10, offset=4)) == by_expiry[4:]
        assert listing.live_locks(limit=10, offset=5) == []
        assert listing.live_locks(limit=0) == []

    def test_no_limit_and_no_offset_is_too_large(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        by_expiry = _five(backend)
        assert _hashes(listing.live_locks(limit=10**30)) == by_expiry
        assert listing.live_locks(offset=10**30) == []

    def test_a_released_lock_is_not_listed(self, backend: LockBackend, listing: ListsLocks) -> None:
        acquired(backend, "k").release()
        assert listing.live_locks() == []
        assert listing.count_live_locks() == 0

    def test_an_expired_lock_is_not_listed(self, backend: LockBackend, listing: ListsLocks) -> None:
        expired(backend, "gone")
        acquired(backend, "here")
        assert _hashes(listing.live_locks()) == [hash_key("here")]
        assert listing.count_live_locks() == 1

    def test_an_extended_lock_moves_in_the_list(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        first = acquired(backend, "first", 20_000)
        acquired(backend, "second", 40_000)
        first.extend(60_000)
        assert _hashes(listing.live_locks()) == [hash_key("second"), hash_key("first")]

    def test_an_adopted_lock_is_listed_once_under_its_new_id(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        new = backend.adopt(acquired(backend, "k").lock_id, LONG_MS)
        assert new.ok
        assert [info.lock_id_hash for info in listing.live_locks()] == [hash_key(new.lock_id)]

    def test_an_adopted_lock_moves_in_the_list(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        first = acquired(backend, "first", 20_000)
        acquired(backend, "second", 40_000)
        assert backend.adopt(first.lock_id, 60_000).ok
        assert _hashes(listing.live_locks()) == [hash_key("second"), hash_key("first")]

    def test_a_refused_acquire_adds_nothing_to_the_list(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        acquired(backend, "k")
        backend.acquire("k", LONG_MS)
        assert listing.count_live_locks() == 1

    def test_a_page_has_raw_keys_the_total_number_and_the_time(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        _five(backend)
        page = listing.page_raw(limit=2, offset=1)
        assert [info.key for info in page.locks] == ["lock 2", "lock 3"]
        assert [sanitized(info) for info in page.locks] == listing.live_locks(2, 1)
        assert page.total == 5
        assert all(is_live(info.expires_at_ms, page.now_ms) for info in page.locks)
        assert all(info.acquired_at_ms <= page.now_ms for info in page.locks)

    def test_a_page_with_limit_zero_has_the_total_number_and_the_time(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        _five(backend)
        page = listing.page_raw(limit=0)
        assert (page.locks, page.total) == ([], 5)
        assert page.now_ms >= listing.page_raw(limit=1).locks[0].acquired_at_ms

    def test_a_lock_is_found_by_a_condition_of_the_caller(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        _five(backend)
        [found] = listing.find_raw(lambda info: info.key == "lock 4")
        assert backend.lookup(lock_id=found.lock_id) == sanitized(found)
        assert listing.find_raw(lambda info: info.key == "lock 9") == []

    def test_find_returns_at_most_the_requested_number(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        _five(backend)
        assert len(listing.find_raw(lambda _info: True, at_most=3)) == 3
        assert len(listing.find_raw(lambda _info: True, at_most=9)) == 5

    def test_the_fence_and_the_time_of_the_acquisition_narrow_the_search(
        self, backend: LockBackend, listing: ListsLocks
    ) -> None:
        acquired(backend, "k").release()
        acquired(backend, "k")
        seen = backend.lookup(key="k")
        assert seen is not None
        # With a fence floor, two locks that are acquired in one millisecond can have one fence.
        eventually(lambda: listing.page_raw(limit=0).now_ms > seen.acquired_at_ms)
        acquired(backend, "other")
        [found] = listing.find_raw(
            lambda _info: True, 9, fence=seen.fence, acquired_at_ms=seen.acquired_at_ms
        )
        assert found.key == "k"
        assert listing.find_raw(lambda _info: True, fence="0" * len(seen.fence)) == []
