"""The interface of a store for the time of one operation, and the row of a lock."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from syncguard._sql.names import Names


class LockRow(NamedTuple):
    """A lock as it is stored. It may have expired. SENSITIVE: the repr hides it."""

    storage_key: str
    lock_id: str
    expires_at_ms: int
    acquired_at_ms: int
    fence: str
    key: str
    holder: str | None

    def __repr__(self) -> str:
        return f"<LockRow fence={self.fence}>"


class Transaction(Protocol):
    """One operation's access to the store. Nobody else writes meanwhile, if the operation does."""

    @property
    def now_ms(self) -> int:
        """The time on the store's clock, read after the store was locked."""
        ...

    def find(self, storage_key: str) -> LockRow | None: ...

    def find_by_id(self, lock_id: str) -> LockRow | None: ...

    def put(self, row: LockRow) -> None:
        """Insert a row, or replace the one with the same storage key."""
        ...

    def remove(self, row: LockRow) -> None: ...

    def next_fence(self, fence_key: str, least: int) -> int:
        """Increment a counter, or raise it to ``least``, whichever is more. Returns the number."""
        ...

    def live_rows(self, names: Names, limit: int | None = None, offset: int = 0) -> list[LockRow]:
        """The live locks of a prefix, soonest to expire first."""
        ...

    def count_live(self, names: Names) -> int: ...

    def count_fences(self, names: Names) -> int: ...
