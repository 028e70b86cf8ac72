"""``AsyncEmbeddedBackend``: the methods of an asyncio backend, on any store."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from syncguard._backend.backend_base import AsyncBackend
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage, Wanted
from syncguard._backend.optional import AsyncExtendChannel, Extension, Refusal
from syncguard._backend.required import check_signal
from syncguard._embedded.backend_config import Configured
from syncguard._embedded.operations import Operation, is_late
from syncguard._heartbeat.fallback_channel import AsyncBatchChannel
from syncguard._lock.background_tasks import keep
from syncguard._lock.cancellation import finished, settle
from syncguard._lock.handles import AsyncAcquired
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import hides_arguments_of_methods, returnable
from syncguard.types import (
    CONTENDED,
    Contended,
    ExtendResult,
    LockInfoDebug,
    NotAdopted,
    ReleaseResult,
    Signal,
)

T = TypeVar("T")


@hides_arguments_of_methods()
class AsyncEmbeddedBackend(Configured, AsyncBackend):
    """An asyncio backend without a server. A subclass runs the operations, and waits."""

    @abstractmethod
    async def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """Execute an operation in one transaction. Raises LockError; then nothing was changed.

        If the caller is cancelled, the operation may still be executed.
        """

    @abstractmethod
    async def aclose(self) -> None: ...

    async def setup(self) -> None:
        """Make what the store needs. Can be called again; the first use does it too."""

    async def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | Contended:
        """Try once to acquire the lock."""
        operation = self._operations.acquire(key, ttl_ms, holder)
        if ttl_ms < SHORT_TTL_MS:
            warn_of_short_ttl(ttl_ms)
        check_signal(signal)
        answer = await self._run_acquire(operation, ttl_ms, signal=signal)
        return CONTENDED if isinstance(answer, Refusal) else answer

    async def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        return await self._checked_run(self._operations.release(lock_id), signal)

    async def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        return await self._checked_run(self._operations.extend(lock_id, ttl_ms), signal)

    async def extend_many(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        """Extend many locks in one transaction. Returns a result or an error for each."""
        operation = self._operations.extend_many(extensions)
        try:
            return [*await self.run(operation)]
        except LockError as error:
            return [returnable(error)] * len(extensions)

    async def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | NotAdopted:
        """Take over a lock by its lock id. The fence stays the same; the lock id is new."""
        operation = self._operations.adopt(lock_id, ttl_ms, holder)
        check_signal(signal)
        answer = await self._run_or_undo(operation, signal=signal)
        if isinstance(answer, str):
            return NotAdopted(answer)
        if is_late(operation, ttl_ms):
            await self._undo_now(operation.lock_id)
            return NotAdopted("expired")
        return AsyncAcquired(*answer, ttl_ms, operation.begun_at_ms, self._disposal, self)

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        return await self._checked_run(self._operations.is_locked(key), signal)

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        return await self._checked_run(self._operations.lookup(key, lock_id), signal)

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the time. SENSITIVE."""
        return await self.run(self._operations.page(limit, offset))

    async def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE."""
        every = await self.run(self._operations.every_lock(fence, acquired_at_ms))
        return [info for info in every if is_wanted(info)][:at_most]

    async def count_live_locks(self) -> int:
        """The number of live locks."""
        return (await self.run(self._operations.counts()))[0]

    async def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return (await self.run(self._operations.counts()))[1]

    async def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        return await self.run(self._operations.force_release(key_hash, fence, lock_id_hash))

    async def open_extend_channel(self, _timeout_ms: float) -> AsyncExtendChannel | None:
        """For heartbeats: extends all locks that are due in one transaction."""
        return AsyncBatchChannel(self)

    # -- for waiters --------------------------------------------------------------------------

    async def attempt(
        self, key: str, ttl_ms: int, holder: str | None, deadline: Deadline | None
    ) -> AsyncAcquired | Refusal:
        """One acquire, within the deadline."""
        operation = self._operations.acquire(key, ttl_ms, holder)
        return await self._run_acquire(operation, ttl_ms, deadline=deadline)

    def is_locked_operation(self, key: str) -> Operation[bool]:
        return self._operations.is_locked(key)

    # -- private ------------------------------------------------------------------------------

    async def _checked_run(self, operation: Operation[T], signal: Signal | None) -> T:
        check_signal(signal)
        return await self.run(operation, signal=signal)

    async def _run_acquire(
        self,
        operation: Operation[Granted | Refusal],
        ttl_ms: int,
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> AsyncAcquired | Refusal:
        answer = await self._run_or_undo(operation, signal=signal, deadline=deadline)
        if isinstance(answer, Refusal):
            return answer
        if is_late(operation, ttl_ms):
            await self._undo_now(operation.lock_id)
            return Refusal()
        return AsyncAcquired(*answer, ttl_ms, operation.begun_at_ms, self._disposal, self)

    async def _run_or_undo(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """Run an operation that grants a lock. If the caller is cancelled, release the lock."""
        task = asyncio.ensure_future(self.run(operation, signal=signal, deadline=deadline))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not await finished(task):
                task.add_done_callback(lambda _task: keep(self._undoing(operation.lock_id)))
            elif not task.cancelled() and isinstance(_outcome(task), Granted):
                await finished(self._undoing(operation.lock_id))
            raise

    async def _undo_now(self, lock_id: str) -> None:
        with contextlib.suppress(LockError):
            await settle(self.run(self._operations.release(lock_id)))

    def _undoing(self, lock_id: str) -> asyncio.Task[ReleaseResult]:
        return asyncio.ensure_future(self.run(self._operations.release(lock_id)))


def _outcome(task: asyncio.Task[T]) -> T | None:
    return task.result() if task.exception() is None else None
