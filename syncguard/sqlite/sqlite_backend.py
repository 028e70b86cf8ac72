"""``SQLiteBackend``: locks in a SQLite file, blocking."""

from __future__ import annotations

import time
from typing import ClassVar, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health
from syncguard._embedded.embedded_backend import EmbeddedBackend
from syncguard._embedded.operations import Operation
from syncguard.sqlite.backend_config import OnFile
from syncguard.sqlite.health import read_health
from syncguard.sqlite.waiter import SQLiteWaiter
from syncguard.types import Signal

T = TypeVar("T")


class SQLiteBackend(OnFile, EmbeddedBackend):
    """Locks in a SQLite file, blocking. Can be shared between threads and used after a fork.

    The file is made on first use, with its tables; it must contain nothing else. Nothing is opened
    before. With ``synchronous="full"`` a power cut loses nothing; with ``"normal"``, which is many
    times faster, ``fence_floor="clock"`` makes sure that no fence is repeated after one.
    """

    twin: ClassVar[str | None] = "syncguard.sqlite.AsyncSQLiteBackend"

    def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        return self._file.run(operation, self._deadline(signal, deadline))

    def setup(self) -> None:
        """Make the file and its tables. Can be called again; the first use does it too."""
        self._file.setup(self._deadline(None, None))

    def health(self) -> Health:
        """The state of the file, and what an operator should change. Raises LockError."""
        begin = time.perf_counter()
        self.run(Operation(lambda _store: None))
        write_ms = (time.perf_counter() - begin) * 1000
        live, fences = self.run(self._operations.counts())
        return read_health(
            self._file,
            live_locks=live,
            fence_counters=fences,
            write_ms=write_ms,
            fence_floor=self._options.fence_floor,
        )

    def open_waiter(self, key: str) -> SQLiteWaiter:
        """For ``lock()``: a waiter that notices a release soon, by reading the row."""
        self._options.names.of(key)  # checks the key
        return SQLiteWaiter(self, key)

    def close(self) -> None:
        """Close the file. Held locks stay held, and the next use opens it again."""
        self._file.close()
