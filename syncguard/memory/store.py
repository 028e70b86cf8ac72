"""``MemoryStore``: locks and fence counters in dictionaries, a clock, and the waiters.

As in Redis, a lock is gone at the end of its TTL, to the millisecond.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from syncguard._embedded.operations import Operation
from syncguard._embedded.transaction import LockRow
from syncguard._sql.names import Names
from syncguard.clock import holder_clock_ms
from syncguard.errors import invalid_argument

T = TypeVar("T")
Clock = Callable[[], int]
"""Returns the time in milliseconds since the epoch."""

WakeUp = Callable[[], object]


_EPOCH_MS: Final = time.time() * 1000 - holder_clock_ms()
"""The holder's clock shows 0 at this time."""


def steady_clock_ms() -> int:
    """The holders' own clock. A clock that is set would end locks that holders believe in."""
    return int(_EPOCH_MS + holder_clock_ms())


class MemoryStore:
    """The locks of one process. Blocking and asyncio backends of several threads can share it."""

    def __init__(self, clock: Clock | None = None) -> None:
        if clock is not None and not callable(clock):
            raise invalid_argument("clock must be a function that returns milliseconds")
        self._clock: Final = clock or steady_clock_ms
        self._rows: dict[str, LockRow] = {}
        self._keys_by_id: dict[str, str] = {}
        self._fences: dict[str, int] = {}
        self._waiters: dict[str, list[WakeUp]] = {}
        self._unlock()
        _stores.add(self)

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of a URL such as ``memory://name``: the same one for each use of the name."""
        return _named.setdefault(name, cls())

    def clear(self) -> None:
        """Forget all locks and fences, for the next test."""
        with self.transaction():
            self._rows.clear()
            self._keys_by_id.clear()
            self._fences.clear()
            self._wake_all()

    def run(self, operation: Operation[T]) -> T:
        """Execute an operation. Nothing can fail half-way: the operations check first."""
        operation.begun_at_ms = holder_clock_ms()
        with self.transaction() as transaction:
            return operation.run(transaction)

    @contextmanager
    def transaction(self) -> Iterator[MemoryTransaction]:
        """One operation at a time."""
        with self._guard:
            yield MemoryTransaction(self, self._clock())

    @contextmanager
    def waiting(self, storage_key: str, wake_up: WakeUp) -> Iterator[None]:
        """During the block, a release of this lock calls ``wake_up``, on the releasing thread."""
        with self._guard:
            self._waiters.setdefault(storage_key, []).append(wake_up)
        try:
            yield
        finally:
            with self._guard:
                waiters = self._waiters[storage_key]
                waiters.remove(wake_up)
                if not waiters:
                    del self._waiters[storage_key]

    def _unlock(self) -> None:
        # Reentrant: a signal handler or the garbage collector may release a lock in the middle of
        # an operation of the same thread.
        self._guard = threading.RLock()

    def _wake(self, storage_key: str) -> None:
        for wake_up in list(self._waiters.get(storage_key, ())):
            wake_up()

    def _wake_all(self) -> None:
        for storage_key in list(self._waiters):
            self._wake(storage_key)


class MemoryTransaction:
    """The store, for one operation; implements ``Transaction``."""

    def __init__(self, store: MemoryStore, now_ms: int) -> None:
        self._store = store
        self.now_ms: Final = now_ms

    def find(self, storage_key: str) -> LockRow | None:
        row = self._store._rows.get(storage_key)
        if row is None or row.expires_at_ms > self.now_ms:
            return row
        self._forget(row)
        return None

    def find_by_id(self, lock_id: str) -> LockRow | None:
        storage_key = self._store._keys_by_id.get(lock_id)
        return None if storage_key is None else self.find(storage_key)

    def put(self, row: LockRow) -> None:
        old = self._store._rows.get(row.storage_key)
        if old is not None:
            del self._store._keys_by_id[old.lock_id]
        self._store._rows[row.storage_key] = row
        self._store._keys_by_id[row.lock_id] = row.storage_key

    def remove(self, row: LockRow) -> None:
        self._forget(row)
        self._store._wake(row.storage_key)

    def next_fence(self, fence_key: str, least: int) -> int:
        number = max(self._store._fences.get(fence_key, 0) + 1, least)
        self._store._fences[fence_key] = number
        return number

    def live_rows(self, names: Names, limit: int | None = None, offset: int = 0) -> list[LockRow]:
        found = [self.find(storage_key) for storage_key in list(self._store._rows)]
        rows = [row for row in found if row and names.is_own(row.storage_key, row.key)]
        rows.sort(key=lambda row: (row.expires_at_ms, row.storage_key))
        return rows[offset : None if limit is None else offset + limit]

    def count_live(self, names: Names) -> int:
        return len(self.live_rows(names))

    def count_fences(self, names: Names) -> int:
        head = f"{names.head}fence:{names.head}"
        return sum(fence_key.startswith(head) for fence_key in self._store._fences)

    def _forget(self, row: LockRow) -> None:
        del self._store._rows[row.storage_key]
        del self._store._keys_by_id[row.lock_id]


_named: Final[dict[str, MemoryStore]] = {}
_stores: Final[weakref.WeakSet[MemoryStore]] = weakref.WeakSet()


def _unlock_in_child() -> None:
    # Another thread of the parent may have been in an operation. The child has its own copy.
    for store in list(_stores):
        store._unlock()


os.register_at_fork(after_in_child=_unlock_in_child)
