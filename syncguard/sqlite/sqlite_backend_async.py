"""``AsyncSQLiteBackend``: locks in a SQLite file, for asyncio.

SQLite blocks, so the operations run on two threads of the backend. An operation cannot be
withdrawn: if a caller is cancelled, its lock is released.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health
from syncguard._embedded.embedded_backend_async import AsyncEmbeddedBackend
from syncguard._embedded.operations import Operation
from syncguard.sqlite.backend_config import OnFile
from syncguard.sqlite.health import read_health
from syncguard.sqlite.waiter import AsyncSQLiteWaiter
from syncguard.types import Signal

T = TypeVar("T")

_THREADS: Final = 2
"""One operation at a time uses the file; the second can follow while the first one sleeps."""


class AsyncSQLiteBackend(OnFile, AsyncEmbeddedBackend):
    """Locks in a SQLite file, for asyncio, in any event loop. See ``SQLiteBackend``."""

    twin: ClassVar[str | None] = "syncguard.sqlite.SQLiteBackend"
    _threads: ThreadPoolExecutor | None = None
    _pid = 0

    async def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        until = self._deadline(signal, deadline)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor(), self._file.run, operation, until)

    async def setup(self) -> None:
        """Make the file and its tables. Can be called again; the first use does it too."""
        loop, until = asyncio.get_running_loop(), self._deadline(None, None)
        await loop.run_in_executor(self._executor(), self._file.setup, until)

    async def health(self) -> Health:
        """The state of the file, and what an operator should change. Raises LockError."""
        begin = time.perf_counter()
        await self.run(Operation(lambda _store: None))
        write_ms = (time.perf_counter() - begin) * 1000
        live, fences = await self.run(self._operations.counts())
        return read_health(
            self._file,
            live_locks=live,
            fence_counters=fences,
            write_ms=write_ms,
            fence_floor=self._options.fence_floor,
        )

    def open_waiter(self, key: str) -> AsyncSQLiteWaiter:
        """For ``syncguard.aio.lock``: a waiter that notices a release soon, by reading the row."""
        self._options.names.of(key)  # checks the key
        return AsyncSQLiteWaiter(self, key)

    async def aclose(self) -> None:
        """Close the file and end the threads. The next use opens it again."""
        threads, self._threads = self._threads, None
        if threads is not None and self._pid == os.getpid():
            await asyncio.to_thread(threads.shutdown)
        self._file.close()

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pid = os.getpid()
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="syncguard-sqlite")
        return self._threads
