"""``AsyncRedisBackend``: locks on Redis, for asyncio.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. In addition it undoes an interrupted acquire: otherwise the lock would
stay held until its TTL ends, without a holder.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import redis
import redis.asyncio

from syncguard._backend.listing_and_health import LockPage, Wanted, sanitized
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.background_tasks import keep
from syncguard._lock.cancellation import finished
from syncguard._lock.handles import AsyncAcquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_KEY_PREFIX, DEFAULT_TTL_MS
from syncguard.errors import LockError, invalid_argument
from syncguard.lock_async import AsyncLockable
from syncguard.redis import listing
from syncguard.redis._transport.connections import AsyncNodePool, AsyncPool, async_runner_pool
from syncguard.redis._transport.runner_async import (
    AsyncCommandRunner,
    AsyncConnectionRunner,
    AsyncRunner,
)
from syncguard.redis.backend_config import UNDO_PAUSES_S, Configured, client_from_url
from syncguard.redis.heartbeat_channel import AsyncRedisExtendChannel
from syncguard.redis.replies import Granted
from syncguard.redis.script_calls import Call, FenceFloor
from syncguard.redis.waiter_async import AsyncRedisWaiter
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.types import (
    CONTENDED,
    Contended,
    ExtendResult,
    LockInfo,
    LockInfoDebug,
    NotAdopted,
    OnReleaseError,
    ReleaseResult,
    Signal,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class AsyncRedisBackend(Configured, AsyncLockable):
    """Locks on Redis, for asyncio. Use it only in the event loop of its client."""

    twin: ClassVar[str | None] = "syncguard.redis.RedisBackend"

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        cleanup_in_is_locked: bool = False,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
    ) -> None:
        if isinstance(client, redis.Redis | redis.RedisCluster):
            raise invalid_argument("AsyncRedisBackend takes a redis.asyncio client")
        super().__init__(
            client,
            key_prefix=key_prefix,
            cleanup_in_is_locked=cleanup_in_is_locked,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )
        self._pool = async_runner_pool(client)
        self._node_pools: dict[str, AsyncPool] = {}
        self._runner: AsyncRunner = (
            AsyncCommandRunner(client) if self._pool is None else AsyncConnectionRunner(self._pool)
        )
        self._channels: weakref.WeakSet[AsyncRedisExtendChannel] = weakref.WeakSet()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        cleanup_in_is_locked: bool = False,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
        **client_options: object,
    ) -> Self:
        """Make a backend and its client from a URL; ``aclose()`` closes both."""
        client = client_from_url(redis.asyncio.Redis.from_url, url, client_options)
        backend = cls(
            client,
            key_prefix=key_prefix,
            cleanup_in_is_locked=cleanup_in_is_locked,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )
        backend._owns_client = True
        return backend

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
        if signal is not None:
            check_signal(signal)
        answer = await self._run_acquire(call, ttl_ms)
        return CONTENDED if isinstance(answer, Refusal) else answer

    async def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        call = self._calls.release(lock_id)
        if signal is not None:
            check_signal(signal)
        task = asyncio.ensure_future(self._runner.run(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if await finished(task) and task.cancelled():
                await finished(asyncio.ensure_future(self._undo(call.lock_id)))
            raise

    async def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        call = self._calls.extend(lock_id, ttl_ms)
        if signal is not None:
            check_signal(signal)
        return await self._runner.run(call)

    async def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | NotAdopted:
        """Take over a lock by its lock id. The fence stays the same; the lock id is new."""
        call = self._calls.adopt(lock_id, ttl_ms, holder)
        if signal is not None:
            check_signal(signal)
        sent_at_ms = holder_clock_ms()
        answer = await self._run_or_undo(call, call.args[1])
        if isinstance(answer, str):
            return NotAdopted(answer)
        return self._acquired(answer, ttl_ms, sent_at_ms)

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        if signal is not None:
            check_signal(signal)
        return await self._runner.run(call)

    async def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        """Read a live lock, sanitized. Only for diagnostics: do not decide about writes with it."""
        info = await self.lookup_raw(key=key, lock_id=lock_id, signal=signal)
        return None if info is None else sanitized(info)

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """The same with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        call = self._calls.lookup(key, lock_id)
        if signal is not None:
            check_signal(signal)
        return await self._runner.run(call)

    async def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        """The live locks, soonest to expire first. Reads only the returned locks; never scans."""
        return list(map(sanitized, await self.live_locks_raw(limit, offset)))

    async def live_locks_raw(self, limit: int = 100, offset: int = 0) -> list[LockInfoDebug]:
        """The same with raw keys and lock ids. SENSITIVE: for administrators' tools."""
        return (await self.page_raw(limit, offset)).locks

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """The same, with the total number of live locks and the server's time. SENSITIVE.

        One request for up to a thousand locks; on a cluster, one for each of its buckets.
        """
        return await self._drive(listing.page(self._calls, limit, offset))

    async def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE."""
        return await self._drive(
            listing.find(
                self._calls, is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
            )
        )

    async def count_live_locks(self) -> int:
        """The number of live locks."""
        return (await self._drive(listing.counts(self._calls)))[0]

    async def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return (await self._drive(listing.counts(self._calls)))[1]

    async def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        for info in await self._drive(listing.holder(self._calls, key_hash, fence, lock_id_hash)):
            return await self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> AsyncRedisWaiter:
        """For ``syncguard.aio.lock``: a waiter that the holder's release wakes."""
        wake = self._calls.names.of(key).wake
        return AsyncRedisWaiter(self, lambda: self._pool_of(wake), key, wake)

    async def open_extend_channel(self, timeout_ms: float) -> AsyncRedisExtendChannel | None:
        """Open a separate connection for heartbeats; None on a cluster and on mocks."""
        if self._pool is None:
            return None
        channel = await AsyncRedisExtendChannel.open(self._calls, self._pool, timeout_ms)
        self._channels.add(channel)
        return channel

    async def aclose(self) -> None:
        """Close our own connections, and the client if ``from_url`` made it.

        Connections of another client return to its pool.
        """
        for channel in list(self._channels):
            await channel.close_if_idle()
        await self._runner.close()
        if self._owns_client:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def _pool_of(self, name: str) -> AsyncPool | None:
        if not self._clustered:
            return self._pool
        node = self._client.get_node_from_key(name)
        pool = self._node_pools.get(node.name)
        if pool is None:
            pool = self._node_pools[node.name] = AsyncNodePool(node)
        return pool

    async def attempt(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        """For a waiter: one acquire that sets the waiter's flag if it is refused."""
        call = self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)
        return await self._run_acquire(call, ttl_ms)

    async def _run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int
    ) -> AsyncAcquired | Refusal:
        sent_at_ms = holder_clock_ms()
        answer = await self._run_or_undo(call, call.lock_id)
        if isinstance(answer, Refusal):
            return answer
        return self._acquired(answer, ttl_ms, sent_at_ms)

    async def _run_or_undo(self, call: Call[T], lock_id: object) -> T:
        """Run a call that acquires a lock. If the caller is cancelled, release the lock."""
        task = asyncio.ensure_future(self._runner.run(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not await finished(task):
                task.add_done_callback(lambda _task: self._undo_later(lock_id))
            elif task.cancelled():
                await finished(asyncio.ensure_future(self._undo(lock_id)))
            elif task.exception() is not None:
                # The server does not answer, but may have executed the call: undo it in background.
                self._undo_later(lock_id)
            elif isinstance(task.result(), Granted):
                await finished(asyncio.ensure_future(self._undo(lock_id)))
            raise

    async def _undo(self, lock_id: object) -> None:
        assert isinstance(lock_id, str)
        for pause in (*UNDO_PAUSES_S, 0.5):  # the last if Redis hung; no caller waits for it
            await asyncio.sleep(pause)
            with contextlib.suppress(LockError):
                if (await self._runner.run(self._calls.release(lock_id))).ok:
                    return

    def _undo_later(self, lock_id: object) -> None:
        keep(asyncio.ensure_future(self._undo(lock_id)))

    def _acquired(self, granted: Granted, ttl_ms: int, sent_at_ms: float) -> AsyncAcquired:
        return AsyncAcquired(
            granted.lock_id,
            granted.fence,
            granted.expires_at_ms,
            granted.key,
            ttl_ms,
            sent_at_ms,
            self._disposal,
            self,
        )

    async def _drive(self, steps: listing.Steps[T]) -> T:
        result: object = None
        while True:
            try:
                call = steps.send(result)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            result = await self._runner.run(call)
