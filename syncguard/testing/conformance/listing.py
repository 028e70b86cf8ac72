"""Listing: which locks are live, soonest to expire first, and how many."""

from __future__ import annotations

from syncguard.backend import LockBackend
from syncguard.keys import hash_key
from syncguard.testing.conformance.setting import LONG_MS, Setting, acquired, expired
from syncguard.types import LockInfo


def _five(backend: LockBackend) -> list[str]:
    """Five locks, acquired in no particular order; the hashes of their keys by expiry."""
    for nth in (3, 1, 5, 2, 4):
        acquired(backend, f"lock {nth}", LONG_MS + nth * 10_000)
    return [hash_key(f"lock {nth}") for nth in (1, 2, 3, 4, 5)]


def _hashes(infos: list[LockInfo]) -> list[str]:
    return [info.key_hash for info in infos]


class ListingConformance(Setting):
    """What ``live_locks`` and ``count_live_locks`` promise."""

    def test_an_empty_store_lists_nothing(self, backend: LockBackend) -> None:
        assert backend.live_locks() == []
        assert backend.count_live_locks() == 0

    def test_locks_are_listed_soonest_to_expire_first(self, backend: LockBackend) -> None:
        by_expiry = _five(backend)
        assert _hashes(backend.live_locks()) == by_expiry
        assert backend.count_live_locks() == 5

    def test_the_list_shows_what_a_lookup_shows(self, backend: LockBackend) -> None:
        backend.acquire("k", LONG_MS, holder="me")
        assert backend.live_locks() == [backend.lookup(key="k")]
        assert type(backend.live_locks()[0]) is LockInfo

    def test_limit_and_offset_cut_a_page_out(self, backend: LockBackend) -> None:
        by_expiry = _five(backend)
        assert _hashes(backend.live_locks(limit=2)) == by_expiry[:2]
        assert _hashes(backend.live_locks(limit=2, offset=2)) == by_expiry[2:4]
        assert _hashes(backend.live_locks(limit=10, offset=4)) == by_expiry[4:]
        assert backend.live_locks(limit=10, offset=5) == []
        assert backend.live_locks(limit=0) == []

    def test_no_limit_and_no_offset_is_too_large(self, backend: LockBackend) -> None:
        by_expiry = _five(backend)
        assert _hashes(backend.live_locks(limit=10**30)) == by_expiry
        assert backend.live_locks(offset=10**30) == []

    def test_a_released_lock_leaves_the_list(self, backend: LockBackend) -> None:
        acquired(backend, "k").release()
        assert backend.live_locks() == []
        assert backend.count_live_locks() == 0

    def test_a_lock_that_ran_out_leaves_the_list(self, backend: LockBackend) -> None:
        expired(backend, "gone")
        acquired(backend, "here")
        assert _hashes(backend.live_locks()) == [hash_key("here")]
        assert backend.count_live_locks() == 1

    def test_an_extended_lock_moves_in_the_list(self, backend: LockBackend) -> None:
        first = acquired(backend, "first", 20_000)
        acquired(backend, "second", 40_000)
        first.extend(60_000)
        assert _hashes(backend.live_locks()) == [hash_key("second"), hash_key("first")]

    def test_an_adopted_lock_is_listed_once_under_its_new_id(self, backend: LockBackend) -> None:
        new = backend.adopt(acquired(backend, "k").lock_id, LONG_MS)
        assert new.ok
        assert [info.lock_id_hash for info in backend.live_locks()] == [hash_key(new.lock_id)]

    def test_an_adopted_lock_moves_in_the_list(self, backend: LockBackend) -> None:
        first = acquired(backend, "first", 20_000)
        acquired(backend, "second", 40_000)
        assert backend.adopt(first.lock_id, 60_000).ok
        assert _hashes(backend.live_locks()) == [hash_key("second"), hash_key("first")]

    def test_a_refused_acquire_lists_nothing_more(self, backend: LockBackend) -> None:
        acquired(backend, "k")
        backend.acquire("k", LONG_MS)
        assert backend.count_live_locks() == 1
