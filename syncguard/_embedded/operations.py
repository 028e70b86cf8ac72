"""Every operation as a value: checked input, and a function of a ``Transaction``. No I/O.

A lock is live for ``TIME_TOLERANCE_MS`` longer than its TTL, as the specification asks. Only extend
and adopt are stricter: they never revive a lock whose TTL has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage
from syncguard._backend.optional import Extension, Refusal
from syncguard._embedded.transaction import LockRow, Transaction
from syncguard._sql.backend_options import SqlOptions
from syncguard._sql.rows import fence_exhausted, granted, lock_info
from syncguard.clock import holder_clock_ms, is_live
from syncguard.constants import FENCE_MAX, TIME_TOLERANCE_MS
from syncguard.errors import invalid_argument
from syncguard.keys import (
    format_fence,
    generate_lock_id,
    validate_count,
    validate_holder,
    validate_lock_id,
    validate_ttl_ms,
)
from syncguard.types import AbsenceReason, ExtendResult, LockInfoDebug, ReleaseResult

T = TypeVar("T")

FENCES_PER_MS: Final = 10
"""With ``fence_floor="clock"``, a fence is at least the time in milliseconds times this."""

_RELEASED: Final = ReleaseResult(True)
_NOT_FOUND: Final = ReleaseResult(False, "not-found")


@dataclass(slots=True, repr=False)
class Operation(Generic[T]):
    """What a store executes in one transaction."""

    run: Callable[[Transaction], T]
    writes: bool = True
    lock_id: str = ""
    """The id of the lock that it may grant: known before, so that it can be undone."""
    begun_at_ms: float = 0.0
    """When the last try began, on the holder's clock. The store sets it: it is before ``now_ms``.

    Earlier tries, at a busy file, granted nothing. So the TTL does not begin with them.
    """

    def __repr__(self) -> str:
        # Tracebacks with local variables show operations: no key and no lock id may be in the text.
        return f"<Operation {self.run.__qualname__.split('.')[1]}>"


class Operations:
    """The operations of one backend."""

    def __init__(self, options: SqlOptions) -> None:
        self._options = options
        self._names = options.names
        self._hash = options.hash

    def acquire(self, key: str, ttl_ms: int, holder: str | None) -> Operation[Granted | Refusal]:
        names = self._names.of(key)
        validate_ttl_ms(ttl_ms)
        label = self._options.holder_of(holder)
        lock_id = generate_lock_id()
        is_floored = self._options.fence_floor is not None

        def run(store: Transaction) -> Granted | Refusal:
            now_ms = store.now_ms
            held = store.find(names.lock)
            if held is not None and is_live(held.expires_at_ms, now_ms):
                return Refusal(_remaining_ms(held, now_ms))
            number = store.next_fence(names.fence, now_ms * FENCES_PER_MS if is_floored else 0)
            if number > int(FENCE_MAX):
                raise fence_exhausted()
            fence, expires_at_ms = format_fence(number), now_ms + ttl_ms
            store.put(LockRow(names.lock, lock_id, expires_at_ms, now_ms, fence, names.key, label))
            return granted(self._hash, lock_id, fence, expires_at_ms, names.key)

        return Operation(run, lock_id=lock_id)

    def release(self, lock_id: str) -> Operation[ReleaseResult]:
        validate_lock_id(lock_id)
        return Operation(lambda store: self._release(store, lock_id))

    def release_many(self, lock_ids: Sequence[str]) -> Operation[list[ReleaseResult]]:
        for lock_id in lock_ids:
            validate_lock_id(lock_id)
        return Operation(lambda store: [self._release(store, lock_id) for lock_id in lock_ids])

    def extend(self, lock_id: str, ttl_ms: int) -> Operation[ExtendResult]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        return Operation(lambda store: self._extend(store, lock_id, ttl_ms))

    def extend_many(self, extensions: Sequence[Extension]) -> Operation[list[ExtendResult]]:
        for lock_id, ttl_ms in extensions:
            validate_lock_id(lock_id)
            validate_ttl_ms(ttl_ms)
        return Operation(lambda store: [self._extend(store, *each) for each in extensions])

    def adopt(
        self, lock_id: str, ttl_ms: int, holder: str | None
    ) -> Operation[Granted | AbsenceReason]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        validate_holder(holder)
        new_id = generate_lock_id()

        def run(store: Transaction) -> Granted | AbsenceReason:
            row = self._own(store, lock_id)
            if row is None:
                return "not-found"
            if row.expires_at_ms <= store.now_ms:
                return "expired"
            expires_at_ms = store.now_ms + ttl_ms
            label = row.holder if holder is None else holder
            store.put(row._replace(lock_id=new_id, expires_at_ms=expires_at_ms, holder=label))
            return granted(self._hash, new_id, row.fence, expires_at_ms, row.key)

        return Operation(run, lock_id=new_id)

    def is_locked(self, key: str) -> Operation[bool]:
        names = self._names.of(key)

        def run(store: Transaction) -> bool:
            row = store.find(names.lock)
            return row is not None and is_live(row.expires_at_ms, store.now_ms)

        return Operation(run, writes=False)

    def lookup(self, key: str | None, lock_id: str | None) -> Operation[LockInfoDebug | None]:
        if (key is None) == (lock_id is None):
            raise invalid_argument("lookup takes either key or lock_id, and not both")
        storage_key = "" if key is None else self._names.of(key).lock
        wanted_id = "" if lock_id is None else validate_lock_id(lock_id)

        def run(store: Transaction) -> LockInfoDebug | None:
            row = store.find(storage_key) if storage_key else self._own(store, wanted_id)
            return None if row is None else self._info(row, store.now_ms)

        return Operation(run, writes=False)

    def page(self, limit: int, offset: int) -> Operation[LockPage]:
        validate_count("limit", limit)
        validate_count("offset", offset)

        def run(store: Transaction) -> LockPage:
            rows = store.live_rows(self._names, limit, offset) if limit else []
            return LockPage(
                self._infos(rows, store.now_ms), store.count_live(self._names), store.now_ms
            )

        return Operation(run, writes=False)

    def every_lock(
        self, fence: str = "", acquired_at_ms: int | None = None
    ) -> Operation[list[LockInfoDebug]]:
        def run(store: Transaction) -> list[LockInfoDebug]:
            rows = [
                row
                for row in store.live_rows(self._names)
                if fence in ("", row.fence) and acquired_at_ms in (None, row.acquired_at_ms)
            ]
            return self._infos(rows, store.now_ms)

        return Operation(run, writes=False)

    def counts(self) -> Operation[tuple[int, int]]:
        """How many locks are live, and how many fence counters there are."""
        return Operation(
            lambda store: (store.count_live(self._names), store.count_fences(self._names)),
            writes=False,
        )

    def force_release(
        self, key_hash: str, fence: str, lock_id_hash: str
    ) -> Operation[ReleaseResult]:
        """Release the lock if all three still match: two keys can have the same hash."""
        hashes = (key_hash, lock_id_hash)
        marks = {"key_hash": key_hash, "fence": fence, "lock_id_hash": lock_id_hash}
        for name, value in marks.items():
            if not isinstance(value, str) or not value:
                raise invalid_argument(f"{name} must be a non-empty str")

        def run(store: Transaction) -> ReleaseResult:
            for row in store.live_rows(self._names):
                if row.fence == fence and hashes == (self._hash(row.key), self._hash(row.lock_id)):
                    return self._release(store, row.lock_id)
            return _NOT_FOUND

        return Operation(run)

    # -- private ------------------------------------------------------------------------------

    def _release(self, store: Transaction, lock_id: str) -> ReleaseResult:
        row = self._own(store, lock_id)
        if row is None:
            return _NOT_FOUND
        store.remove(row)
        if is_live(row.expires_at_ms, store.now_ms):
            return _RELEASED
        return ReleaseResult(False, "expired")

    def _extend(self, store: Transaction, lock_id: str, ttl_ms: int) -> ExtendResult:
        row = self._own(store, lock_id)
        if row is None:
            return ExtendResult(False, None, "not-found")
        if row.expires_at_ms <= store.now_ms:
            return ExtendResult(False, None, "expired")
        expires_at_ms = store.now_ms + ttl_ms
        store.put(row._replace(expires_at_ms=expires_at_ms))
        return ExtendResult(True, expires_at_ms)

    def _own(self, store: Transaction, lock_id: str) -> LockRow | None:
        """The row of a lock id, if it has this backend's prefix. Verifies what the store found."""
        row = store.find_by_id(lock_id)
        if row is None or row.lock_id != lock_id:
            return None
        return row if self._names.is_own(row.storage_key, row.key) else None

    def _info(self, row: LockRow, now_ms: int) -> LockInfoDebug | None:
        return lock_info(
            self._hash,
            key=row.key,
            lock_id=row.lock_id,
            expires_at_ms=row.expires_at_ms,
            acquired_at_ms=row.acquired_at_ms,
            fence=row.fence,
            holder=row.holder,
            now_ms=now_ms,
        )

    def _infos(self, rows: Sequence[LockRow], now_ms: int) -> list[LockInfoDebug]:
        infos = (self._info(row, now_ms) for row in rows)
        return [info for info in infos if info is not None]


def is_late(operation: Operation[T], ttl_ms: int) -> bool:
    """Whether a grant came after its TTL had ended: then it is no grant."""
    return holder_clock_ms() >= operation.begun_at_ms + ttl_ms


def _remaining_ms(held: LockRow, now_ms: int) -> int:
    """When to try again: at the end of the TTL, and from then on at the end of the tolerance."""
    left = held.expires_at_ms - now_ms
    return left if left > 0 else left + TIME_TOLERANCE_MS
