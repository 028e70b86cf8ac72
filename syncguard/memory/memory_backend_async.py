"""``AsyncMemoryBackend``: locks in the memory of this process, for asyncio, and its waiter."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import ClassVar, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._embedded.embedded_backend_async import AsyncEmbeddedBackend
from syncguard._embedded.operations import Operation
from syncguard._lock.handles import AsyncAcquired
from syncguard._lock.sleeping_waiter import SLICE_MS
from syncguard.memory.backend_config import InMemory
from syncguard.memory.health import make_health
from syncguard.types import Signal

T = TypeVar("T")


class AsyncMemoryBackend(InMemory, AsyncEmbeddedBackend):
    """Locks in the memory of this process, for asyncio. For unit tests. See ``MemoryBackend``."""

    twin: ClassVar[str | None] = "syncguard.memory.MemoryBackend"

    async def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,  # noqa: ARG002 - memory never makes anybody wait
        deadline: Deadline | None = None,  # noqa: ARG002
    ) -> T:
        return self.store.run(operation)

    async def _run_or_undo(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,  # noqa: ARG002
        deadline: Deadline | None = None,  # noqa: ARG002
    ) -> T:
        # Awaits nothing, so the caller cannot be cancelled meanwhile.
        return await self.run(operation)

    async def health(self) -> Health:
        """The number of locks and counters; nothing can be wrong with memory."""
        return make_health(*await self.run(self._operations.counts()))

    def open_waiter(self, key: str) -> AsyncMemoryWaiter:
        """For ``syncguard.aio.lock``: a waiter that the holder's release wakes."""
        return AsyncMemoryWaiter(self, key, self._options.names.of(key).lock)

    async def aclose(self) -> None:
        """Nothing to close. The locks stay in the store."""


class AsyncMemoryWaiter:
    """One waiter of asyncio code. The release may be on another thread."""

    def __init__(self, backend: AsyncMemoryBackend, key: str, storage_key: str) -> None:
        self._backend = backend
        self._key = key
        self._storage_key = storage_key

    async def attempt(
        self, ttl_ms: int, holder: str | None, _wait_ms: int
    ) -> AsyncAcquired | Refusal:
        return await self._backend.attempt(self._key, ttl_ms, holder, None)

    async def wait(self, ms: float, signal: Signal | None) -> bool:
        deadline = time.monotonic() + ms / 1000
        is_locked = self._backend.is_locked_operation(self._key)
        loop, released = asyncio.get_running_loop(), asyncio.Event()

        def wake_up() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(released.set)

        with self._backend.store.waiting(self._storage_key, wake_up):
            while True:
                check_signal(signal)
                # Also without a release: a test may have moved the clock.
                if not await self._backend.run(is_locked):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(released.wait(), min(left, SLICE_MS / 1000))
                released.clear()

    async def close(self) -> None: ...
