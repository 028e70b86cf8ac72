"""``AsyncPostgresBackend``: locks in PostgreSQL, for asyncio.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. In addition it undoes an acquire whose answer did not arrive: otherwise
the lock would stay held until its TTL ends, without a holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import ClassVar, TypeVar

from syncguard._backend.backend_base import AsyncBackend
from syncguard._backend.call_steps import run_steps_async
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import Health, LockPage, Wanted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.background_tasks import keep
from syncguard._lock.cancellation import finished
from syncguard._lock.handles import AsyncAcquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError
from syncguard.postgres import listing
from syncguard.postgres._transport.runner_async import AsyncRunner
from syncguard.postgres.backend_config import Configured
from syncguard.postgres.heartbeat_channel import AsyncPostgresExtendChannel
from syncguard.postgres.replies import Release
from syncguard.postgres.statement_calls import Call
from syncguard.postgres.undo import is_doubtful, pauses
from syncguard.postgres.waiter_async import AsyncPostgresWaiter
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import hides_arguments_of_methods
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
class AsyncPostgresBackend(Configured, AsyncBackend):
    """Locks in PostgreSQL, for asyncio.

    It opens its own connections, so a lock is independent of the caller's transactions. Options
    that are not named here go to libpq: ``sslmode``, ``password`` and so on.
    """

    twin: ClassVar[str | None] = "syncguard.postgres.PostgresBackend"

    def _make_runner(self) -> None:
        self._runner = AsyncRunner(
            self._address, max_connections=self._max_connections, timeout_ms=self._timeout_ms
        )

    async def setup(self) -> None:
        """Create the tables and functions. Can be called again, also after an upgrade."""
        await asyncio.to_thread(self._set_up)

    async def is_set_up(self) -> bool:
        """Whether the tables and functions exist."""
        return await self._runner.run(self._calls.is_set_up())

    async def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | Contended:
        """Try once to acquire the lock."""
        call = self._calls.acquire(key, ttl_ms, holder)
        if ttl_ms < SHORT_TTL_MS:
            warn_of_short_ttl(ttl_ms)
        check_signal(signal)
        answer = await self._run_acquire(call, ttl_ms, None)
        return CONTENDED if isinstance(answer, Refusal) else answer

    async def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        call = self._calls.release([lock_id])
        check_signal(signal)
        task = asyncio.ensure_future(self._run_release(call))
        try:
            return (await asyncio.shield(task))[0]
        except asyncio.CancelledError:
            await finished(task)
            raise

    async def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        call = self._calls.extend([(lock_id, ttl_ms)])
        check_signal(signal)
        return (await self._runner.run(call))[0]

    async def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | NotAdopted:
        """Take over a lock by its lock id. The fence stays the same; the lock id is new.

        Waits for an open transaction of the old holder that guards its writes with this lock.
        """
        call, new_id = self._calls.adopt(lock_id, ttl_ms, holder)
        check_signal(signal)
        sent_at_ms = holder_clock_ms()
        answer = await self._run_or_undo(call, new_id, ttl_ms, None)
        if isinstance(answer, str):
            return NotAdopted(answer)
        if holder_clock_ms() < sent_at_ms + ttl_ms:
            return AsyncAcquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        self._undo_later(new_id, ttl_ms)  # granted too late
        return NotAdopted("expired")

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        check_signal(signal)
        locked = await self._runner.run(call)
        if not locked and self._calls.options.cleanup_in_is_locked:
            await self._runner.run(self._calls.cleanup(key))
        return locked

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        call = self._calls.lookup(key, lock_id)
        check_signal(signal)
        return await self._runner.run(call)

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the number of live locks and the server's time. SENSITIVE."""
        return await self._runner.run(listing.page(self._calls, limit, offset))

    async def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE."""
        return await run_steps_async(
            self._runner.run,
            listing.find(
                self._calls, is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
            ),
        )

    async def count_live_locks(self) -> int:
        """The number of live locks."""
        return (await self.page_raw(limit=0)).total

    async def count_fence_counters(self) -> int:
        """The number of fence counters. They are never deleted. Reads all of them."""
        return await self._runner.run(self._calls.count_fences())

    async def cleanup(self) -> int:
        """Delete rows of locks that are over, some hundred at a time. Returns how many.

        The backend does this itself from time to time, after a release.
        """
        return await self._runner.run(self._calls.cleanup())

    async def health(self) -> Health:
        """The state of the server, and what an operator should change. Raises LockError."""
        live_locks = await self.count_live_locks()
        sent_at_ms = time.time() * 1000
        facts = await self._runner.run(self._calls.health())
        received_at_ms = time.time() * 1000
        return self._health(facts, live_locks, sent_at_ms, received_at_ms, self._runner.idle)

    async def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw.

        Succeeds also while the holder's transaction guards its writes with this lock. The next
        holder then waits for that transaction.
        """
        for info in await run_steps_async(
            self._runner.run, listing.holder(self._calls, key_hash, fence, lock_id_hash)
        ):
            return await self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> AsyncPostgresWaiter:
        """For ``lock()``: a waiter that the holder's release wakes."""
        payload = self._calls.payload(self._calls.names.of(key).lock)
        return AsyncPostgresWaiter(self, self._listener, key, payload)

    async def open_extend_channel(self, timeout_ms: float) -> AsyncPostgresExtendChannel:
        """Open a separate connection for heartbeats."""
        return await AsyncPostgresExtendChannel.open(self._calls, self._address, timeout_ms)

    async def aclose(self) -> None:
        """Close the connections. Held locks stay held; the next call connects again."""
        await self._runner.close()
        self._listener.close_if_unused()

    async def attempt(
        self,
        key: str,
        ttl_ms: int,
        holder: str | None,
        wait_ms: int,
        deadline: Deadline | None,
    ) -> AsyncAcquired | Refusal:
        """For a waiter: one acquire that sets the waiter's flag if it is refused."""
        call = self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)
        return await self._run_acquire(call, ttl_ms, deadline)

    async def is_locked_until(self, key: str, deadline: Deadline) -> bool:
        """For a waiter: whether the lock is held, if that is known before the deadline."""
        return await self._runner.run(self._calls.is_locked(key), deadline)

    async def _run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None
    ) -> AsyncAcquired | Refusal:
        sent_at_ms = holder_clock_ms()
        assert call.lock_id is not None
        if deadline is not None:
            deadline.left_s()  # raises before anything is sent, so that nothing must be undone
        answer = await self._run_or_undo(call, call.lock_id, ttl_ms, deadline)
        if isinstance(answer, Refusal):
            if call.times_sent > 1:
                # Its own first sending may have acquired the lock, or may still do so.
                self._undo_later(call.lock_id, ttl_ms)
            return answer
        if holder_clock_ms() < sent_at_ms + ttl_ms:
            return AsyncAcquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        self._undo_later(call.lock_id, ttl_ms)  # granted too late
        return Refusal()

    async def _run_or_undo(
        self, call: Call[T], lock_id: str, ttl_ms: int, deadline: Deadline | None
    ) -> T:
        """Run a call that acquires a lock. If its answer does not arrive, release the lock."""
        task = asyncio.ensure_future(self._runner.run(call, deadline))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not await finished(task):
                task.add_done_callback(lambda _task: self._undo_later(lock_id, ttl_ms))
            elif task.cancelled() or task.exception() is not None:
                if call.times_sent:
                    self._undo_later(lock_id, ttl_ms)
            elif isinstance(task.result(), Granted):
                await finished(asyncio.ensure_future(self._undo_until_done(lock_id, ttl_ms)))
            raise
        except LockError as error:
            if call.times_sent and is_doubtful(error):
                self._undo_later(lock_id, ttl_ms)
            raise

    def _undo_later(self, lock_id: str, ttl_ms: int) -> None:
        keep(asyncio.ensure_future(self._undo_until_done(lock_id, ttl_ms)))

    async def _undo_until_done(self, lock_id: str, ttl_ms: int) -> None:
        pause_of, nth = pauses(ttl_ms), 0
        while (pause := pause_of(nth)) is not None:
            await asyncio.sleep(pause)
            nth += 1
            with contextlib.suppress(LockError):
                await self._undo(lock_id)
                return

    async def _undo(self, lock_id: str) -> None:
        wake_key = await self._runner.run(self._calls.undo(lock_id))
        if wake_key is not None:
            await self._notify(wake_key)

    async def _run_release(self, call: Call[list[Release]]) -> list[ReleaseResult]:
        return await self._released(await self._runner.run(call))

    async def _released(self, releases: list[Release]) -> list[ReleaseResult]:
        for release in releases:
            if release.wake_key is not None:
                await self._notify(release.wake_key)
        if self._must_clean_up():
            with contextlib.suppress(LockError):
                await self.cleanup()
        return [release.result for release in releases]

    async def _notify(self, storage_key: str) -> None:
        # In a transaction of its own: NOTIFY takes a lock for the whole server at its commit, and
        # fails it if the queue is full. Waiters try again without it, only later.
        with contextlib.suppress(LockError):
            await self._runner.run(self._calls.notify(storage_key))
