"""``PostgresBackend``: locks in PostgreSQL, blocking.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. In addition it undoes an acquire whose answer did not arrive: otherwise
the lock would stay held until its TTL ends, without a holder.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from syncguard._backend.backend_base import BlockingBackend
from syncguard._backend.call_steps import run_steps
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import Health, LockPage, Wanted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError, is_interrupt
from syncguard.postgres import listing
from syncguard.postgres._transport.runner import Runner
from syncguard.postgres.backend_config import Configured
from syncguard.postgres.heartbeat_channel import PostgresExtendChannel
from syncguard.postgres.replies import Release
from syncguard.postgres.statement_calls import Call
from syncguard.postgres.undo import UndoThread, is_doubtful
from syncguard.postgres.waiter import PostgresWaiter
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
class PostgresBackend(Configured, BlockingBackend):
    """Locks in PostgreSQL, blocking. Can be shared between threads and used after a fork.

    It opens its own connections, so a lock is independent of the caller's transactions. Options
    that are not named here go to libpq: ``sslmode``, ``password`` and so on.
    """

    twin: ClassVar[str | None] = "syncguard.postgres.AsyncPostgresBackend"

    def _make_runner(self) -> None:
        self._runner = Runner(
            self._address, max_connections=self._max_connections, timeout_ms=self._timeout_ms
        )
        self._undo_thread = UndoThread()
        self._channels: list[weakref.ref[PostgresExtendChannel]] = []

    def setup(self) -> None:
        """Create the tables and functions. Can be called again, also after an upgrade."""
        self._set_up()

    def is_set_up(self) -> bool:
        """Whether the tables and functions exist."""
        return self._runner.run(self._calls.is_set_up())

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
            call = self._calls.acquire(key, ttl_ms, holder)
            if ttl_ms < SHORT_TTL_MS:
                warn_of_short_ttl(ttl_ms)
            check_signal(signal)
            answer = self.run_acquire(call, ttl_ms, None)
            return CONTENDED if isinstance(answer, Refusal) else answer
        except BaseException as error:
            del key, holder
            clear_locals(error)
            raise

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        call = self._calls.release([lock_id])
        check_signal(signal)
        return self._released(self._runner.run(call))[0]

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        """Release many locks in one round trip. Returns a result or an error for each."""
        if not lock_ids:
            return []
        call = self._calls.release(lock_ids)
        try:
            return list(self._released(self._runner.run(call)))
        except LockError as error:
            return [returnable(error)] * len(lock_ids)

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        call = self._calls.extend([(lock_id, ttl_ms)])
        check_signal(signal)
        return self._runner.run(call)[0]

    def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | NotAdopted:
        """Take over a lock by its lock id. The fence stays the same; the lock id is new.

        Waits for an open transaction of the old holder that guards its writes with this lock.
        """
        try:
            return self._adopt(lock_id, ttl_ms, holder, signal)
        except BaseException as error:
            del lock_id
            clear_locals(error)
            raise

    def _adopt(
        self, lock_id: str, ttl_ms: int, holder: str | None, signal: Signal | None
    ) -> Acquired | NotAdopted:
        call, new_id = self._calls.adopt(lock_id, ttl_ms, holder)
        check_signal(signal)
        sent_at_ms = holder_clock_ms()
        try:
            answer = self._runner.run(call)
            if isinstance(answer, str):
                return NotAdopted(answer)
            if holder_clock_ms() < sent_at_ms + ttl_ms:
                return Acquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        except BaseException as error:
            self._undo_unanswered(error, call, new_id, ttl_ms)
            raise
        self.undo(new_id)  # granted too late
        return NotAdopted("expired")

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        check_signal(signal)
        locked = self._runner.run(call)
        if not locked and self._calls.options.cleanup_in_is_locked:
            self._runner.run(self._calls.cleanup(key))
        return locked

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        call = self._calls.lookup(key, lock_id)
        check_signal(signal)
        return self._runner.run(call)

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the number of live locks and the server's time. SENSITIVE."""
        return self._runner.run(listing.page(self._calls, limit, offset))

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE."""
        return run_steps(
            self._runner.run,
            listing.find(
                self._calls, is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
            ),
        )

    def count_live_locks(self) -> int:
        """The number of live locks."""
        return self.page_raw(limit=0).total

    def count_fence_counters(self) -> int:
        """The number of fence counters. They are never deleted. Reads all of them."""
        return self._runner.run(self._calls.count_fences())

    def cleanup(self) -> int:
        """Delete rows of locks that are over, some hundred at a time. Returns how many.

        The backend does this itself from time to time, after a release.
        """
        return self._runner.run(self._calls.cleanup())

    def health(self) -> Health:
        """The state of the server, and what an operator should change. Raises LockError."""
        live_locks = self.count_live_locks()
        sent_at_ms = time.time() * 1000
        facts = self._runner.run(self._calls.health())
        received_at_ms = time.time() * 1000
        return self._health(facts, live_locks, sent_at_ms, received_at_ms, self._runner.idle)

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw.

        Succeeds also while the holder's transaction guards its writes with this lock. The next
        holder then waits for that transaction.
        """
        for info in run_steps(
            self._runner.run, listing.holder(self._calls, key_hash, fence, lock_id_hash)
        ):
            return self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> PostgresWaiter:
        """For ``lock()``: a waiter that the holder's release wakes."""
        payload = self._calls.payload(self._calls.names.of(key).lock)
        return PostgresWaiter(self, self._listener, key, payload)

    def open_extend_channel(self, timeout_ms: float) -> PostgresExtendChannel:
        """Open a separate connection for heartbeats."""
        channel = PostgresExtendChannel.open(self._calls, self._address, timeout_ms)
        # No threading lock: a fork could copy it while it is locked.
        open_ones = [known for known in self._channels if known() is not None]
        self._channels = [*open_ones, weakref.ref(channel)]
        return channel

    def close(self) -> None:
        """Close the connections. Held locks stay held; the next call connects again."""
        for known in self._channels:
            channel = known()
            if channel is not None:
                channel.close_if_idle()
        self._runner.close()
        self._listener.close_if_unused()

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]:
        """For a waiter: one attempt as a value, so that its lock id is known before it runs."""
        return self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)

    def run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None
    ) -> Acquired | Refusal:
        """Run an acquire. A grant that arrives after its TTL has ended is no grant."""
        sent_at_ms = holder_clock_ms()
        assert call.lock_id is not None
        if deadline is not None:
            deadline.left_s()  # raises before anything is sent, so that nothing must be undone
        try:
            answer = self._runner.run(call, deadline)
            if isinstance(answer, Refusal):
                if call.times_sent > 1:
                    # Its own first sending may have acquired the lock, or may still do so.
                    self._undo_in_background(call.lock_id, ttl_ms)
                return answer
            if holder_clock_ms() < sent_at_ms + ttl_ms:
                return Acquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        except BaseException as error:
            self._undo_unanswered(error, call, call.lock_id, ttl_ms)
            raise
        self.undo(call.lock_id)  # granted too late
        return Refusal()

    def is_locked_until(self, key: str, deadline: Deadline) -> bool:
        """For a waiter: whether the lock is held, if that is known before the deadline."""
        return self._runner.run(self._calls.is_locked(key), deadline)

    def undo(self, lock_id: str) -> None:
        """Release the lock that an interrupted request may have acquired, or may still acquire."""
        try:
            self._undo(lock_id)
        except LockError:
            self._undo_in_background(lock_id, DEFAULT_TTL_MS)

    def _undo_unanswered(
        self, error: BaseException, call: Call[T], lock_id: str, ttl_ms: int
    ) -> None:
        if call.times_sent == 0:
            return  # no connection: nothing can have been acquired
        if is_interrupt(error):
            # Ctrl-C, a time limit, or the loss of another lock: the caller cannot release it.
            self.undo(lock_id)
        elif is_doubtful(error):
            self._undo_in_background(lock_id, ttl_ms)

    def _undo_in_background(self, lock_id: str, ttl_ms: int) -> None:
        self._undo_thread.add(lambda: self._undo(lock_id), ttl_ms)

    def _undo(self, lock_id: str) -> None:
        wake_key = self._runner.run(self._calls.undo(lock_id))
        if wake_key is not None:
            self._notify(wake_key)

    def _released(self, releases: list[Release]) -> list[ReleaseResult]:
        for release in releases:
            if release.wake_key is not None:
                self._notify(release.wake_key)
        if self._must_clean_up():
            with contextlib.suppress(LockError):
                self.cleanup()
        return [release.result for release in releases]

    def _notify(self, storage_key: str) -> None:
        # In a transaction of its own: NOTIFY takes a lock for the whole server at its commit, and
        # fails it if the queue is full. Waiters try again without it, only later.
        with contextlib.suppress(LockError):
            self._runner.run(self._calls.notify(storage_key))
