"""The state machine of the conformance suite finds a backend that makes one mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dict_backend import DictBackend, Store
from hypothesis import Phase, settings

from syncguard.backend import ExtendResult, ReleaseResult
from syncguard.testing.conformance.state_machine import OWNERS, RUNS, check_random_operations


class RepeatsFences(DictBackend):
    def release(self, lock_id, **options):
        self.store.fences.clear()
        return super().release(lock_id, **options)


class GrantsTwice(DictBackend):
    def acquire(self, key, *args, **options):
        self.store.locks.pop((self.prefix, key), None)
        return super().acquire(key, *args, **options)


class ReleasesWhatIsGone(DictBackend):
    def release(self, lock_id, **options):
        super().release(lock_id, **options)
        return ReleaseResult(True)


class ExtendsWhatIsGone(DictBackend):
    def extend(self, lock_id, ttl_ms, **options):
        result = super().extend(lock_id, ttl_ms, **options)
        return result if result.ok else ExtendResult(True, 1)


class AdoptsUnderTheOldId(DictBackend):
    def adopt(self, lock_id, *args, **options):
        result = super().adopt(lock_id, *args, **options)
        for name, info in self.store.locks.items() if result.ok else ():
            if info.lock_id == result.lock_id:
                self.store.locks[name] = replace(info, lock_id=lock_id)
        return replace(result, lock_id=lock_id) if result.ok else result


class ForceReleasesAnyHolder(DictBackend):
    def force_release(self, key_hash, **_seen):
        for info in self.find_raw(lambda info: info.key_hash == key_hash):
            return self.release(info.lock_id)
        return ReleaseResult(False)


class ListsNothing(DictBackend):
    def page_raw(self, limit=100, offset=0):
        page = super().page_raw(limit, offset)
        return replace(page, locks=[]) if limit == 1_000 else page


BROKEN = [
    RepeatsFences,
    GrantsTwice,
    ReleasesWhatIsGone,
    ExtendsWhatIsGone,
    AdoptsUnderTheOldId,
    ForceReleasesAnyHolder,
    ListsNothing,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_backend_that_makes_one_mistake_is_found(broken: type[DictBackend]) -> None:
    store = Store()
    # Without shrinking: it would make the example small, and takes minutes.
    runs = settings(RUNS, max_examples=5_000, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        check_random_operations([broken(store) for _ in range(OWNERS)], runs)
