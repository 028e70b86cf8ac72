"""A state machine of several owners: random operations on a backend, compared with a small model.

The model knows, for each key, the live lock and the largest fence so far. After every operation the
backend must have answered what the model expects. Locks expire only where the machine makes them
expire, so a slow machine changes no verdict. Needs the package hypothesis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from syncguard.backend import (
    ListsLocks,
    LockBackend,
    LockInfo,
    Wakeable,
    listing_of,
    offers,
)
from syncguard.errors import AcquisitionTimeout
from syncguard.lock import lock
from syncguard.testing.conformance.blocking_facade import BlockingFacade
from syncguard.testing.conformance.fixtures import LONG_MS, eventually
from syncguard.types import Acquisition, Fence

OWNERS: Final = 3
"""How many backends the machine gets: each stands for another process."""

_KEYS: Final = 2
_EXPIRING_MS: Final = 1
_ALL: Final = 1_000
_ONCE: Final = Acquisition(max_retries=0, timeout_ms=60_000)
RUNS: Final = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Granted:
    """A lock id that was granted once. It may be spent by now."""

    key: str
    lock_id: str
    fence: Fence


@dataclass(frozen=True)
class Seen:
    """A lock as an administrator saw it on a page, and its lock id, which they did not see."""

    info: LockInfo
    granted: Granted


def check_random_operations(owners: Sequence[LockBackend], runs: settings = RUNS) -> None:
    """Run the machine many times. All backends must be on one store."""
    machine = type("Machine", (OwnersMachine,), {"owners": owners, "numbers": itertools.count()})
    run_state_machine_as_test(machine, settings=runs)


_owner: Final = st.integers(0, OWNERS - 1)
_key: Final = st.integers(0, _KEYS - 1)


class OwnersMachine(RuleBasedStateMachine):
    """Several owners, few keys, every operation of a backend."""

    owners: Sequence[LockBackend]
    numbers: Iterator[int]
    granted = Bundle("granted")
    seen = Bundle("seen")

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"machine-{next(self.numbers)}"
        # The model.
        self.live: dict[str, Granted] = {}
        self.last_fence: dict[str, Fence] = {}

    # -- acquire and adopt ------------------------------------------------------------------------

    @rule(target=granted, owner=_owner, key=_key)
    def acquire(self, owner: int, key: int) -> object:
        name = self._name(key)
        result = self.owners[owner].acquire(name, LONG_MS)
        assert result.ok is (name not in self.live)
        return self._note(name, result.lock_id, result.fence) if result.ok else multiple()

    @rule(target=granted, owner=_owner, known=granted)
    def adopt(self, owner: int, known: Granted) -> object:
        result = self.owners[owner].adopt(known.lock_id, LONG_MS)
        assert result.ok is self._is_live(known)
        if not result.ok:
            return multiple()
        assert result.lock_id != known.lock_id
        assert (result.key, result.fence) == (known.key, known.fence)
        adopted = self.live[known.key] = Granted(known.key, result.lock_id, known.fence)
        return adopted

    @rule(owner=_owner, key=_key)
    def hold_for_one_block(self, owner: int, key: int) -> None:
        name, backend = self._name(key), self.owners[owner]
        if isinstance(backend, BlockingFacade) and not offers(backend, Wakeable):
            return  # the facade of an asyncio backend can wait only if that can
        try:
            with lock(backend, name, LONG_MS, acquisition=_ONCE) as held:
                assert name not in self.live
                self._note(name, held.lock_id, held.fence)
                assert not held.lost
        except AcquisitionTimeout:
            assert name in self.live
        else:
            del self.live[name]

    # -- release, extend, expire ------------------------------------------------------------------

    @rule(owner=_owner, known=granted)
    def release(self, owner: int, known: Granted) -> None:
        assert self.owners[owner].release(known.lock_id).ok is self._is_live(known)
        self._end(known)

    @rule(owner=_owner, known=granted, longer_ms=st.integers(0, LONG_MS))
    def extend(self, owner: int, known: Granted, longer_ms: int) -> None:
        result = self.owners[owner].extend(known.lock_id, LONG_MS + longer_ms)
        assert result.ok is self._is_live(known)
        assert (result.expires_at_ms is not None) is result.ok

    @rule(owner=_owner, known=granted)
    def expire(self, owner: int, known: Granted) -> None:
        """Let the lock end by its TTL, and wait for it."""
        backend = self.owners[owner]
        assert backend.extend(known.lock_id, _EXPIRING_MS).ok is self._is_live(known)
        if self._is_live(known):
            eventually(lambda: not backend.is_locked(known.key))
            self._end(known)

    # -- administrators ---------------------------------------------------------------------------

    @rule(target=seen, owner=_owner, key=_key)
    def see(self, owner: int, key: int) -> object:
        info = self.owners[owner].lookup(key=self._name(key))
        return multiple() if info is None else Seen(info, self.live[self._name(key)])

    @rule(owner=_owner, seen=seen)
    def force_release(self, owner: int, seen: Seen) -> None:
        backend, info = self.owners[owner], seen.info
        if not offers(backend, ListsLocks):
            return
        result = listing_of(backend).force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        assert result.ok is self._is_live(seen.granted)
        self._end(seen.granted)

    # -- lookups ----------------------------------------------------------------------------------

    @rule(owner=_owner, known=granted)
    def look_up_by_lock_id(self, owner: int, known: Granted) -> None:
        info = self.owners[owner].lookup_raw(lock_id=known.lock_id)
        assert (info is not None) is self._is_live(known)
        if info is not None:
            assert (info.key, info.lock_id, info.fence) == (known.key, known.lock_id, known.fence)

    @rule(owner=_owner)
    def list_live_locks(self, owner: int) -> None:
        backend = self.owners[owner]
        if offers(backend, ListsLocks):
            listed = listing_of(backend).page_raw(limit=_ALL).locks
            own = [info for info in listed if info.key in self._names()]
            assert {Granted(info.key, info.lock_id, info.fence) for info in own} == set(
                self.live.values()
            )

    @invariant()
    def every_owner_sees_who_holds_what(self) -> None:
        for backend, name in zip(itertools.cycle(self.owners), self._names(), strict=False):
            expected = self.live.get(name)
            assert backend.is_locked(name) is (expected is not None)
            info = backend.lookup_raw(key=name)
            assert (info.lock_id if info else None) == (expected.lock_id if expected else None)

    def teardown(self) -> None:
        for known in self.live.values():
            self.owners[0].release(known.lock_id)

    # -- the model --------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [self._name(key) for key in range(_KEYS)]

    def _name(self, key: int) -> str:
        return f"{self.prefix}-{key}"

    def _note(self, name: str, lock_id: str, fence: Fence) -> Granted:
        assert fence > self.last_fence.get(name, "")
        self.last_fence[name] = fence
        granted = self.live[name] = Granted(name, lock_id, fence)
        return granted

    def _is_live(self, known: Granted) -> bool:
        return self.live.get(known.key) == known

    def _end(self, known: Granted) -> None:
        if self._is_live(known):
            del self.live[known.key]
