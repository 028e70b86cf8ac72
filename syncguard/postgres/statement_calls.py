"""Every operation on PostgreSQL as a value: the statement, its parameters, and the rows' reader.

No I/O here, and no difference between blocking and asyncio: both backends run the same calls.
All input is checked when a call is created, so that bad input never reaches a connection.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage
from syncguard._backend.optional import Extension, Refusal
from syncguard._sql.backend_options import SqlOptions
from syncguard._sql.names import KEY_LIMIT_BYTES
from syncguard.constants import CLEANUP_GUARD_MS, FENCE_MAX, TIME_TOLERANCE_MS
from syncguard.errors import invalid_argument
from syncguard.keys import generate_lock_id, validate_lock_id, validate_ttl_ms
from syncguard.postgres.health import ServerFacts, read_facts
from syncguard.postgres.replies import (
    Reader,
    Release,
    Rows,
    read_count,
    read_extends,
    read_flag,
    read_releases,
    read_resent_releases,
    read_text,
)
from syncguard.postgres.statements import Statement, Statements, setup_sql
from syncguard.postgres.table_names import Tables
from syncguard.types import AbsenceReason, ExtendResult, LockInfoDebug

T = TypeVar("T")

PAGE: Final = 1000
"""The largest number of locks that one call of ``find`` reads."""

CHANNEL: Final = "syncguard"
"""The one channel of LISTEN and NOTIFY."""

FLAG_MS: Final = 10_000
"""A waiter's flag stays set this much longer than the wait, so that few refusals write."""

KEPT_MS: Final = 60_000
"""Cleanup keeps a row this long after its acquisition: a key in use keeps its row."""

TOMBSTONE_MS: Final = 3_600_000
"""How long a spent lock id is kept, in case its request arrives late."""

CLEANUP_ROWS: Final = 500
"""How many rows one cleanup deletes at most."""

_MAX_ROWS: Final = 2**62
"""Larger than any table, and still a bigint."""

_TOLERANCE: Final = str(TIME_TOLERANCE_MS)


@dataclass(slots=True, repr=False)
class Call(Generic[T]):
    """One round trip. ``read`` converts the rows to the result."""

    statement: Statement
    params: tuple[bytes | None, ...]
    read: Callable[[Rows], T]
    key: str | None = None
    lock_id: str | None = None
    if_resent: Callable[[Rows, T], T] | None = None
    """Corrects the result of a request that was sent twice, where the server cannot detect that."""
    times_sent: int = 0
    """Counted before each sending. After the second one, the first may still be executed."""

    def __repr__(self) -> str:
        # Tracebacks with local variables show calls: no key and no lock id may be in the text.
        return f"<Call {self.statement.name}>"


class Calls:
    """The calls of one backend: its tables, its names, its options."""

    def __init__(self, tables: Tables, options: SqlOptions) -> None:
        self.tables: Final = tables
        self.options: Final = options
        self.names: Final = options.names
        self.hash: Final = options.hash
        self._statements = Statements(tables)
        self._reader = Reader(options.hash)
        head = self.names.head
        # ";" follows ":" in the collation "C", so the names of a prefix are those in between.
        self._range = (head, head[:-1] + ";" if head else None)
        self._scope = (*self._range, str(KEY_LIMIT_BYTES), _TOLERANCE)

    # -- acquire, release, extend, adopt ------------------------------------------------------

    def acquire(
        self, key: str, ttl_ms: int, holder: str | None, *, wait_ms: int = 0
    ) -> Call[Granted | Refusal]:
        names = self.names.of(key)
        validate_ttl_ms(ttl_ms)
        label = self.options.holder_of(holder)
        lock_id = generate_lock_id()
        params = (
            names.lock,
            names.fence,
            lock_id,
            names.key,
            label,
            str(ttl_ms),
            _TOLERANCE,
            str(int(FENCE_MAX)),
            "true" if self.options.fence_floor else "false",
            str(wait_ms),
            str(FLAG_MS),
        )

        def read(rows: Rows) -> Granted | Refusal:
            return self._reader.acquire(rows, lock_id, names.key)

        return self._call("acquire", params, read, key=names.key, lock_id=lock_id)

    def release(self, lock_ids: Sequence[str]) -> Call[list[Release]]:
        ids = [validate_lock_id(lock_id) for lock_id in lock_ids]
        return self._call(
            "release",
            (_array(ids), _TOLERANCE, self.names.head),
            lambda rows: read_releases(rows, len(ids)),
            lock_id=ids[0] if len(ids) == 1 else None,
            if_resent=read_resent_releases,
        )

    def extend(self, extensions: Sequence[Extension]) -> Call[list[ExtendResult]]:
        ids = [validate_lock_id(lock_id) for lock_id, _ in extensions]
        ttls = [str(validate_ttl_ms(ttl_ms)) for _, ttl_ms in extensions]
        return self._call(
            "extend",
            (_array(ids), _array(ttls), self.names.head),
            lambda rows: read_extends(rows, len(ids)),
            lock_id=ids[0] if len(ids) == 1 else None,
        )

    def adopt(
        self, lock_id: str, ttl_ms: int, holder: str | None
    ) -> tuple[Call[Granted | AbsenceReason], str]:
        """The call, and the new lock id."""
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        label = None if holder is None else self.options.holder_of(holder)
        new_id = generate_lock_id()

        def read(rows: Rows) -> Granted | AbsenceReason:
            return self._reader.adopt(rows, new_id)

        params = (lock_id, new_id, label, str(ttl_ms), self.names.head)
        return self._call("adopt", params, read, lock_id=lock_id), new_id

    def undo(self, lock_id: str) -> Call[str | None]:
        """Release a lock that a doubtful request may have acquired, or may still acquire."""
        validate_lock_id(lock_id)
        tombstone = f"{self.names.head}id:{lock_id}"
        params = (lock_id, tombstone, str(TOMBSTONE_MS))
        return self._call("undo", params, read_text, lock_id=lock_id)

    def notify(self, storage_key: str) -> Call[None]:
        params = (CHANNEL, self.payload(storage_key))
        return self._call("notify", params, lambda _rows: None)

    def payload(self, storage_key: str) -> str:
        """What a notification says: a hash, because every user of the database can listen."""
        digest = hashlib.sha256(f"{self.tables.locks}\n{storage_key}".encode()).digest()
        return urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    # -- read ---------------------------------------------------------------------------------

    def is_locked(self, key: str) -> Call[bool]:
        names = self.names.of(key)
        return self._call("is_locked", (names.lock, _TOLERANCE), read_flag, key=names.key)

    def lookup(self, key: str | None, lock_id: str | None) -> Call[LockInfoDebug | None]:
        """The raw record. Only the raw helpers may return it unchanged."""
        if (key is None) == (lock_id is None):
            raise invalid_argument("lookup takes either key or lock_id, and not both")
        if key is not None:
            names = self.names.of(key)
            return self._call("lookup_by_key", (names.lock,), self._reader.lookup, key=names.key)
        lock_id = validate_lock_id(lock_id or "")
        params = (lock_id, self.names.head)
        return self._call("lookup_by_id", params, self._reader.lookup, lock_id=lock_id)

    def live_locks(self, limit: int, offset: int) -> Call[LockPage]:
        params = (*self._scope, str(min(limit, _MAX_ROWS)), str(min(offset, _MAX_ROWS)))
        return self._call("live_locks", params, self._reader.page)

    def find(
        self, after: str, fence: str, acquired_at_ms: int | None
    ) -> Call[tuple[str | None, list[LockInfoDebug]]]:
        """Some live locks after a storage key, and the key to continue after."""
        moment = None if acquired_at_ms is None else str(acquired_at_ms)
        params = (*self._scope, after, fence, moment, str(PAGE))
        return self._call("find_live_locks", params, lambda rows: self._reader.found(rows, PAGE))

    def count_fences(self) -> Call[int]:
        head = f"{self.names.head}fence:"
        return self._call("count_fences", (head, head[:-1] + ";"), read_count)

    def cleanup(self, key: str | None = None, *, limit: int = CLEANUP_ROWS) -> Call[int]:
        """Delete rows of locks that are over: of one key, or of all."""
        storage_key = None if key is None else self.names.of(key).lock
        guard = str(TIME_TOLERANCE_MS + CLEANUP_GUARD_MS)
        kept = "0" if key is not None else str(KEPT_MS)
        return self._call("cleanup", (guard, kept, str(limit), storage_key), read_count)

    def health(self) -> Call[ServerFacts]:
        return self._call("health", (), read_facts)

    def is_set_up(self) -> Call[bool]:
        return self._call("is_set_up", (), read_flag)

    def setup(self) -> str:
        return setup_sql(self.tables)

    def _call(
        self,
        name: str,
        params: Sequence[str | None],
        read: Callable[[Rows], T],
        *,
        key: str | None = None,
        lock_id: str | None = None,
        if_resent: Callable[[Rows, T], T] | None = None,
    ) -> Call[T]:
        encoded = tuple(None if value is None else value.encode() for value in params)
        return Call(self._statements[name], encoded, read, key, lock_id, if_resent)


def _array(values: Sequence[str]) -> str:
    """An array of PostgreSQL. The values are lock ids and numbers, which need no quotes."""
    return "{" + ",".join(values) + "}"
