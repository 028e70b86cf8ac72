"""``AsyncRedisBackend``: locks on Redis, for asyncio.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. An acquire or adopt that is cancelled, gets no reply, or gets it too late
is undone by ``undo_thread``: otherwise the lock would stay held until its TTL ends, without a
holder. A cancelled release is completed by the same thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import redis
import redis.asyncio

from syncguard._backend.backend_base import AsyncBackend
from syncguard._backend.call_steps import run_steps_async
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import Health, LockPage, Wanted
from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.background_tasks import keep
from syncguard._lock.cancellation import outcome_task
from syncguard._lock.handles import AsyncAcquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_KEY_PREFIX, DEFAULT_TTL_MS
from syncguard.errors import LockError, invalid_argument, is_interrupt
from syncguard.redis import listing
from syncguard.redis._transport.connections import (
    AsyncNodePool,
    AsyncPool,
    async_runner_pool,
    node_of,
)
from syncguard.redis._transport.error_codes import FAULTS
from syncguard.redis._transport.runner_async import (
    AsyncClusterRunner,
    AsyncRunner,
    async_runner,
)
from syncguard.redis.backend_config import Configured
from syncguard.redis.client_from_url import async_client_from_url
from syncguard.redis.health import async_health_of_server, async_inspect_cluster
from syncguard.redis.heartbeat_channel import AsyncRedisExtendChannel
from syncguard.redis.names import LockNames
from syncguard.redis.replica_acknowledgement import (
    DEFAULT_REPLICA_TIMEOUT_MS,
    TooFewReplicas,
    options_of_url,
)
from syncguard.redis.script_calls import Call, FenceFloor
from syncguard.redis.server_report import read_health
from syncguard.redis.undo_connection import UndoOnAsyncPool, UndoOnLoop, UndoOnNode
from syncguard.redis.undo_thread import EXIT_TIMEOUT_S, Target, Undo, undo_thread
from syncguard.redis.waiter_async import AsyncRedisWaiter
from syncguard.redis.wake_listener_async import AsyncWakeListener
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import hides_arguments_of_methods
from syncguard.types import (
    CONTENDED,
    Contended,
    ExtendResult,
    LockInfoDebug,
    NotAdopted,
    OnReleaseError,
    ReleaseResult,
    Signal,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


@hides_arguments_of_methods()
class AsyncRedisBackend(Configured, AsyncBackend):
    """Locks on Redis, for asyncio. Each event loop that uses it gets a connection of its own."""

    twin: ClassVar[str | None] = "syncguard.redis.RedisBackend"
    begins_at_once: ClassVar[bool] = True

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
        min_replicas: int = 0,
        replica_timeout_ms: int = DEFAULT_REPLICA_TIMEOUT_MS,
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
            min_replicas=min_replicas,
            replica_timeout_ms=replica_timeout_ms,
        )
        self._pool = async_runner_pool(client)
        self._check_connections(self._pool is not None)
        self._node_pools: dict[str, AsyncPool] = {}
        self._runner: AsyncRunner = async_runner(client, self._pool, self._calls.acknowledgement)
        self._noticing: set[Hashable] = set()
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
        min_replicas: int = 0,
        replica_timeout_ms: int = DEFAULT_REPLICA_TIMEOUT_MS,
        **client_options: object,
    ) -> Self:
        """Make a backend and its client from a URL; ``aclose()`` closes both."""
        url, in_url = options_of_url(url)  # they override arguments, as in redis-py
        replicas = {"min_replicas": min_replicas, "replica_timeout_ms": replica_timeout_ms}
        client = async_client_from_url(url, client_options)
        backend = cls(
            client,
            key_prefix=key_prefix,
            cleanup_in_is_locked=cleanup_in_is_locked,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
            **{**replicas, **in_url},
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
        if not undo_thread.is_running:
            undo_thread.start()
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
        try:
            return await self._run_to_its_end(call)
        except asyncio.CancelledError:
            self._undo(lock_id)
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
        if not undo_thread.is_running:
            undo_thread.start()
        call = self._calls.adopt(lock_id, ttl_ms, holder)
        if signal is not None:
            check_signal(signal)
        sent_at_ms = holder_clock_ms()
        try:
            answer = await self._run_to_its_end(call)
        except BaseException as error:
            if call.may_be_sent or is_interrupt(error):
                await _first_try(self._undo(call.args[1], ttl_ms=ttl_ms), error)
            raise
        if isinstance(answer, str):
            return NotAdopted(answer)
        if holder_clock_ms() < sent_at_ms + ttl_ms:
            return AsyncAcquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        name = self._calls.names.of(answer.key).lock
        self._undo(answer.lock_id, name, ttl_ms)  # granted too late
        return NotAdopted("expired")

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        if signal is not None:
            check_signal(signal)
        return await self._runner.run(call)

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""
        call = self._calls.lookup(key, lock_id)
        if signal is not None:
            check_signal(signal)
        return await self._runner.run(call)

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the server's time. SENSITIVE.

        One request for up to a thousand locks; on a cluster, one for each of its buckets.
        """
        return await run_steps_async(self._runner.run, listing.page(self._calls, limit, offset))

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
        return (await run_steps_async(self._runner.run, listing.counts(self._calls)))[0]

    async def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return (await run_steps_async(self._runner.run, listing.counts(self._calls)))[1]

    async def health(self) -> Health:
        """The state of the server, and what an operator should change. Raises LockError."""
        if not self._clustered:
            return await async_health_of_server(self)
        counts = await run_steps_async(self._runner.run, listing.counts(self._calls))
        return read_health(await async_inspect_cluster(self), *counts)

    async def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        for info in await run_steps_async(
            self._runner.run, listing.holder(self._calls, key_hash, fence, lock_id_hash)
        ):
            return await self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> AsyncRedisWaiter:
        """For ``syncguard.aio.lock``: a waiter that the holder's release wakes."""
        return AsyncRedisWaiter(self, self._listener_of, self._calls._names_of(key))

    async def open_extend_channel(self, timeout_ms: float) -> AsyncRedisExtendChannel | None:
        """Open a separate connection for heartbeats; None on a cluster and on mocks."""
        if self._pool is None:
            return None
        return await self._open_channel(self._pool, timeout_ms)

    def server_of(self, lock_id: str) -> str | None:
        """On a cluster: the name of the node that has the lock, by the client's own map."""
        if not self._clustered:
            return None
        try:
            node = node_of(self._client, self._calls.names.index(lock_id))
        except FAULTS:  # no node has this slot now
            return None
        name: str | None = getattr(node, "name", None)
        return name

    async def open_server_channel(
        self, server: Hashable, timeout_ms: float
    ) -> AsyncRedisExtendChannel:
        """Open a separate connection for heartbeats to a node of the cluster."""
        if not self._clustered:
            raise invalid_argument("only a cluster has several servers")
        node = self._client.get_node(node_name=server)
        if node is None:
            raise LockError("ServiceUnavailable", "the cluster no longer has this node")
        try:
            return await self._open_channel(AsyncNodePool(node), timeout_ms)
        except BaseException:  # also a cancellation: the heartbeat's time is over
            self._notice_soon(server)
            raise

    async def _open_channel(self, pool: AsyncPool, timeout_ms: float) -> AsyncRedisExtendChannel:
        channel = await AsyncRedisExtendChannel.open(self._calls, pool, timeout_ms)
        self._channels.add(channel)
        return channel

    def _notice_soon(self, server: Hashable) -> None:
        """Let the client notice that a node is gone, and ask the others for its replacement."""

        async def notice() -> None:
            try:
                with contextlib.suppress(*FAULTS):
                    await self._client.initialize()
                    # Looked up again: see AsyncClusterRunner._node_of.
                    node = self._client.get_node(node_name=server)
                    if node is not None:
                        await self._client.execute_command("PING", target_nodes=node)
                with contextlib.suppress(*FAULTS):
                    await self._client.initialize()
            finally:
                self._noticing.discard(server)

        if server not in self._noticing:
            self._noticing.add(server)
            keep(asyncio.get_running_loop().create_task(notice()))

    async def aclose(self) -> None:
        """Close our own connections, and the client if ``from_url`` made it.

        Connections of another client return to its pool.
        """
        for channel in list(self._channels):
            await channel.close_if_idle()
        await self._runner.close()
        if self._owns_client:
            await self._client.aclose()

    async def ring(self, bell: str) -> None:
        """For a waiter: tell the listener of this loop that it has a new waiter."""
        # If this fails, the waiter is not woken. Its next attempt reports the error.
        with contextlib.suppress(LockError):
            await self._runner.run(self._calls.ring(bell))

    def _listener_of(self, names: LockNames) -> AsyncWakeListener | None:
        pool = None
        with contextlib.suppress(*FAULTS):  # no node has this slot: only sleep
            pool = self._pool_of(names.wake)
        if pool is None:
            return None
        return AsyncWakeListener.on(pool, names.space, clustered=self._clustered)

    def _pool_of(self, name: str) -> AsyncPool | None:
        if not self._clustered:
            return self._pool
        node = node_of(self._client, name)
        pool = self._node_pools.get(node.name)
        if pool is None:
            pool = self._node_pools[node.name] = AsyncNodePool(node)
        return pool

    async def attempt(
        self,
        key: str,
        ttl_ms: int,
        holder: str | None,
        wait_ms: int,
        deadline: Deadline | None = None,
    ) -> AsyncAcquired | Refusal:
        """For a waiter: one acquire that sets the waiter's flag if it is refused."""
        if not undo_thread.is_running:
            undo_thread.start()
        call = self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)
        return await self._run_acquire(call, ttl_ms, deadline)

    async def _run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None = None
    ) -> AsyncAcquired | Refusal:
        """Run an acquire. A grant that arrives after its TTL has ended is no grant."""
        assert call.lock_id is not None
        sent_at_ms = holder_clock_ms()
        try:
            answer = await self._run_to_its_end(call, deadline)
        except BaseException as error:
            if call.may_be_sent or is_interrupt(error):
                await _first_try(self._undo(call.lock_id, call.keys[0], ttl_ms), error)
            raise
        if isinstance(answer, Refusal):
            return answer
        if holder_clock_ms() < sent_at_ms + ttl_ms:
            return AsyncAcquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        self._undo(call.lock_id, call.keys[0], ttl_ms)  # granted too late
        return Refusal()

    async def _run_to_its_end(self, call: Call[T], deadline: Deadline | None = None) -> T:
        """Run a call that continues if the caller is cancelled, if need be in a task of its own.

        The connection can then be used again. Also, ``asyncio.wait_for``, which redis-py uses,
        sometimes swallows a cancellation: then the caller would not notice it.
        """
        if self._runner.outlives_caller:
            return await self._runner.run(call, deadline)
        task = outcome_task(self._runner.run(call, deadline))
        try:
            return (await asyncio.shield(task)).get()
        except asyncio.CancelledError:
            keep(task)
            raise

    def _undo_target(self, lock_id: str) -> Callable[[], Target]:
        loop = asyncio.get_running_loop()

        def target() -> Target:
            name = self._calls.names.index(lock_id)
            try:
                pool = self._pool_of(name)
            except FAULTS:  # no node has this slot
                if isinstance(self._runner, AsyncClusterRunner):
                    self._runner.update_map_from_thread(name)
                raise
            if pool is None:
                return UndoOnLoop(self._runner, loop)
            if isinstance(self._runner, AsyncClusterRunner):
                return UndoOnNode(UndoOnAsyncPool(pool), self._runner.update_map_from_thread)
            return UndoOnAsyncPool(pool)

        return target


async def _first_try(undo: Undo, error: BaseException) -> None:
    """After too few replicas, wait for the first try of the undo: the server answers, so soon."""
    if isinstance(error, TooFewReplicas):
        until = time.monotonic() + EXIT_TIMEOUT_S
        while not undo.tried.is_set() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
