"""``MemoryBackend``: locks in the memory of this process, blocking, and its waiter."""

from __future__ import annotations

import threading
import time
from typing import ClassVar, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._embedded.embedded_backend import EmbeddedBackend
from syncguard._embedded.operations import Operation
from syncguard._lock.handles import Acquired
from syncguard._lock.sleeping_waiter import SLICE_MS
from syncguard.memory.backend_config import InMemory
from syncguard.memory.health import make_health
from syncguard.types import Signal

T = TypeVar("T")


class MemoryBackend(InMemory, EmbeddedBackend):
    """Locks in the memory of this process, blocking. For unit tests.

    ``clock`` returns milliseconds, such as ``syncguard.testing.ManualClock``. Pass ``store`` of
    one backend to another, blocking or asyncio, to share its locks.
    """

    twin: ClassVar[str | None] = "syncguard.memory.AsyncMemoryBackend"

    def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,  # noqa: ARG002 - memory never makes anybody wait
        deadline: Deadline | None = None,  # noqa: ARG002
    ) -> T:
        return self.store.run(operation)

    def health(self) -> Health:
        """The number of locks and counters; nothing can be wrong with memory."""
        live, fences = self.run(self._operations.counts())
        return make_health(live, fences)

    def open_waiter(self, key: str) -> MemoryWaiter:
        """For ``lock()``: a waiter that the holder's release wakes."""
        return MemoryWaiter(self, key, self._options.names.of(key).lock)

    def close(self) -> None:
        """Nothing to close. The locks stay in the store."""


class MemoryWaiter:
    """One waiter of blocking code."""

    def __init__(self, backend: MemoryBackend, key: str, storage_key: str) -> None:
        self._backend = backend
        self._key = key
        self._storage_key = storage_key
        self._lock_id = ""

    def attempt(self, ttl_ms: int, holder: str | None, _wait_ms: int) -> Acquired | Refusal:
        operation = self._backend.acquire_operation(self._key, ttl_ms, holder)
        self._lock_id = operation.lock_id
        return self._backend.run_acquire(operation, ttl_ms)

    def wait(self, ms: float, signal: Signal | None) -> bool:
        deadline = time.monotonic() + ms / 1000
        is_locked = self._backend.is_locked_operation(self._key)
        released = threading.Event()
        with self._backend.store.waiting(self._storage_key, released.set):
            while True:
                check_signal(signal)
                # Also without a release: a test may have moved the clock.
                if not self._backend.run(is_locked):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                released.wait(min(left, SLICE_MS / 1000))
                released.clear()

    def close(self) -> None: ...

    def undo(self) -> None:
        if self._lock_id:
            self._backend.undo(self._lock_id)
