"""``EmbeddedBackend``: the methods of a blocking backend, on any store that runs operations."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from syncguard._backend.backend_base import BlockingBackend
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage, Wanted
from syncguard._backend.optional import ExtendChannel, Extension, Refusal
from syncguard._backend.required import check_signal
from syncguard._embedded.backend_config import Configured
from syncguard._embedded.operations import Operation, is_late
from syncguard._heartbeat.fallback_channel import BatchChannel
from syncguard._lock.handles import Acquired
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError, is_interrupt
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import clear_locals, hides_arguments_of_methods, returnable
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


@hides_arguments_of_methods(inline=frozenset({"acquire", "adopt", "run_acquire"}))
class EmbeddedBackend(Configured, BlockingBackend):
    """A blocking backend without a server. A subclass runs the operations, and waits."""

    @abstractmethod
    def run(
        self,
        operation: Operation[T],
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> T:
        """Execute an operation in one transaction. Raises LockError; then nothing was changed."""

    @abstractmethod
    def close(self) -> None: ...

    def setup(self) -> None:
        """Make what the store needs. Can be called again; the first use does it too."""

    def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended:
        """Try once to acquire the lock."""
        try:
            operation = self._operations.acquire(key, ttl_ms, holder)
            if ttl_ms < SHORT_TTL_MS:
                warn_of_short_ttl(ttl_ms)
            check_signal(signal)
            answer = self.run_acquire(operation, ttl_ms, signal=signal)
            return CONTENDED if isinstance(answer, Refusal) else answer
        except BaseException as error:
            del key, holder
            clear_locals(error)
            raise

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        return self._checked_run(self._operations.release(lock_id), signal)

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        """Release many locks in one transaction. Returns a result or an error for each."""
        operation = self._operations.release_many(lock_ids)
        try:
            return [*self.run(operation)]
        except LockError as error:
            return [returnable(error)] * len(lock_ids)

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        return self._checked_run(self._operations.extend(lock_id, ttl_ms), signal)

    def extend_many(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        """Extend many locks in one transaction. Returns a result or an error for each."""
        operation = self._operations.extend_many(extensions)
        try:
            return [*self.run(operation)]
        except LockError as error:
            return [returnable(error)] * len(extensions)

    def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | NotAdopted:
        """Take over a lock by its lock id. The fence stays the same; the lock id is new."""
        try:
            return self._adopt(lock_id, ttl_ms, holder, signal)
        except BaseException as error:
            del lock_id
            clear_locals(error)
            raise

    def _adopt(
        self, lock_id: str, ttl_ms: int, holder: str | None, signal: Signal | None
    ) -> Acquired | NotAdopted:
        operation = self._operations.adopt(lock_id, ttl_ms, holder)
        check_signal(signal)
        try:
            answer = self.run(operation, signal=signal)
            if isinstance(answer, str):
                return NotAdopted(answer)
            if not is_late(operation, ttl_ms):
                return Acquired(*answer, ttl_ms, operation.begun_at_ms, self._disposal, self)
        except BaseException as error:
            if is_interrupt(error):
                self.undo(operation.lock_id)
            raise
        self.undo(operation.lock_id)
        return NotAdopted("expired")

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        return self._checked_run(self._operations.is_locked(key), signal)

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        return self._checked_run(self._operations.lookup(key, lock_id), signal)

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the time. SENSITIVE."""
        return self.run(self._operations.page(limit, offset))

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE."""
        every = self.run(self._operations.every_lock(fence, acquired_at_ms))
        return [info for info in every if is_wanted(info)][:at_most]

    def count_live_locks(self) -> int:
        """The number of live locks."""
        return self.run(self._operations.counts())[0]

    def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return self.run(self._operations.counts())[1]

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        return self.run(self._operations.force_release(key_hash, fence, lock_id_hash))

    def open_extend_channel(self, _timeout_ms: float) -> ExtendChannel | None:
        """For heartbeats: extends all locks that are due in one transaction, on a thread."""
        return BatchChannel(self)

    # -- for waiters --------------------------------------------------------------------------

    def acquire_operation(
        self, key: str, ttl_ms: int, holder: str | None
    ) -> Operation[Granted | Refusal]:
        """One attempt as a value, so that its lock id is known before it runs."""
        return self._operations.acquire(key, ttl_ms, holder)

    def is_locked_operation(self, key: str) -> Operation[bool]:
        return self._operations.is_locked(key)

    def run_acquire(
        self,
        operation: Operation[Granted | Refusal],
        ttl_ms: int,
        *,
        signal: Signal | None = None,
        deadline: Deadline | None = None,
    ) -> Acquired | Refusal:
        """Run an acquire. If it is interrupted, or too late, release the lock."""
        try:
            answer = self.run(operation, signal=signal, deadline=deadline)
            if isinstance(answer, Refusal):
                return answer
            if not is_late(operation, ttl_ms):
                return Acquired(*answer, ttl_ms, operation.begun_at_ms, self._disposal, self)
        except BaseException as error:
            # Ctrl-C, a time limit, or the loss of another lock: the caller cannot release this one.
            if is_interrupt(error):
                self.undo(operation.lock_id)
            raise
        self.undo(operation.lock_id)
        return Refusal()

    def undo(self, lock_id: str) -> None:
        """Release the lock that an interrupted operation may have acquired."""
        with contextlib.suppress(LockError):
            self.run(self._operations.release(lock_id))

    # -- private ------------------------------------------------------------------------------

    def _checked_run(self, operation: Operation[T], signal: Signal | None) -> T:
        check_signal(signal)
        return self.run(operation, signal=signal)
