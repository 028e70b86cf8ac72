"""``RedisBackend``: locks on Redis, blocking.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. An acquire or adopt that gets no reply, or gets it too late, is undone by
``undo_thread``: otherwise the lock would stay held until its TTL ends, without a holder.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

import redis
import redis.asyncio

from syncguard._backend.backend_base import BlockingBackend
from syncguard._backend.call_steps import run_steps
from syncguard._backend.deadline import Deadline
from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import Health, LockPage, Wanted
from syncguard._backend.optional import DEFAULT_MAX_DELAY_MS, Refusal, Turn
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_KEY_PREFIX, DEFAULT_TTL_MS
from syncguard.errors import LockError, invalid_argument, is_interrupt
from syncguard.redis import listing
from syncguard.redis._transport.cluster_runner import ClusterRunner, blocking_runner
from syncguard.redis._transport.connections import Pool, client_of_node, node_of, runner_pool
from syncguard.redis._transport.error_codes import FAULTS
from syncguard.redis._transport.pipeline import run_one_by_one, run_pipelined
from syncguard.redis._transport.runner import Runner
from syncguard.redis.backend_config import Configured
from syncguard.redis.client_from_url import client_from_url
from syncguard.redis.health import health_of_server, inspect_server
from syncguard.redis.heartbeat_channel import RedisExtendChannel
from syncguard.redis.names import LockNames
from syncguard.redis.replica_acknowledgement import (
    DEFAULT_REPLICA_TIMEOUT_MS,
    TooFewReplicas,
    options_of_url,
)
from syncguard.redis.script_calls import Call, FenceFloor
from syncguard.redis.server_report import read_health
from syncguard.redis.undo_connection import UndoOnClient, UndoOnNode, UndoOnPool
from syncguard.redis.undo_thread import EXIT_TIMEOUT_S, Target, undo_thread
from syncguard.redis.waiter import RedisWaiter
from syncguard.redis.wake_listener import WakeListener
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import clear_locals, hides_arguments_of_methods
from syncguard.types import (
    CONTENDED,
    AbsenceReason,
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


# What only ``lock()`` calls needs no wrapper: ``Lock.__enter__`` clears the frames below it.
@hides_arguments_of_methods(
    inline=frozenset({"acquire", "adopt", "run_acquire", "acquire_call", "open_waiter"})
)
class RedisBackend(Configured, BlockingBackend):
    """Locks on Redis, blocking. Can be shared between threads and used after a fork."""

    twin: ClassVar[str | None] = "syncguard.redis.AsyncRedisBackend"

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
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
        if isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            raise invalid_argument("RedisBackend takes a blocking client; see AsyncRedisBackend")
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
        self._pool = runner_pool(client)
        self._check_connections(self._pool is not None)
        self._runner: Runner = blocking_runner(client, self._pool)
        self._channels: list[weakref.ref[RedisExtendChannel]] = []

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
        """Make a backend and its client from a URL; ``close()`` closes both."""
        url, in_url = options_of_url(url)  # they override arguments, as in redis-py
        replicas = {"min_replicas": min_replicas, "replica_timeout_ms": replica_timeout_ms}
        client = client_from_url(url, client_options)
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
            if not undo_thread.is_running:
                undo_thread.start()
            call = self._calls.acquire(key, ttl_ms, holder)
            if ttl_ms < SHORT_TTL_MS:
                warn_of_short_ttl(ttl_ms)
            if signal is not None:
                check_signal(signal)
            answer = self.run_acquire(call, ttl_ms)
            return CONTENDED if isinstance(answer, Refusal) else answer
        except BaseException as error:
            del key, holder
            clear_locals(error)
            raise

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        call = self._calls.release(lock_id)
        if signal is not None:
            check_signal(signal)
        return self._runner.run(call)

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        """Release many locks in few round trips. Returns a result or an error for each."""
        if not isinstance(lock_ids, Sequence):
            raise invalid_argument("lock_ids must be a sequence of lock ids")
        calls = [self._calls.release(lock_id) for lock_id in lock_ids]
        if self._pool is None:
            return run_one_by_one(self._runner, calls)
        return run_pipelined(self._pool, self._runner, calls)

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        """Set the expiry to ``ttl_ms`` from now. Never revives an expired lock."""
        call = self._calls.extend(lock_id, ttl_ms)
        if signal is not None:
            check_signal(signal)
        return self._runner.run(call)

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
        if not undo_thread.is_running:
            undo_thread.start()
        call = self._calls.adopt(lock_id, ttl_ms, holder)
        if signal is not None:
            check_signal(signal)
        sent_at_ms = holder_clock_ms()
        try:
            answer = self._runner.run(call)
            if isinstance(answer, str):
                return NotAdopted(answer)
            if holder_clock_ms() < sent_at_ms + ttl_ms:
                return Acquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        except BaseException as error:
            self._undo_unanswered(error, call, call.args[1], "", ttl_ms)
            raise
        name = self._calls.names.of(answer.key).lock
        self._undo(answer.lock_id, name, ttl_ms)  # granted too late
        return NotAdopted("expired")

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        if signal is not None:
            check_signal(signal)
        return self._runner.run(call)

    def lookup_raw(
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
        return self._runner.run(call)

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the server's time. SENSITIVE.

        One request for up to a thousand locks; on a cluster, one for each of its buckets.
        """
        return run_steps(self._runner.run, listing.page(self._calls, limit, offset))

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE.

        Finds every lock that is held during the whole search, unless a cluster moves it to another
        node meanwhile. Pass the fence and the time of the acquisition if they are known: then the
        server returns only locks that match both. Do not decide about writes with the result.
        """
        return run_steps(
            self._runner.run,
            listing.find(
                self._calls, is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
            ),
        )

    def count_live_locks(self) -> int:
        """The number of live locks."""
        return run_steps(self._runner.run, listing.counts(self._calls))[0]

    def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return run_steps(self._runner.run, listing.counts(self._calls))[1]

    def health(self) -> Health:
        """The state of the server, and what an operator should change. Raises LockError."""
        if self._clustered:
            return read_health(
                inspect_server(self), *run_steps(self._runner.run, listing.counts(self._calls))
            )
        return health_of_server(self)

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        for info in run_steps(
            self._runner.run, listing.holder(self._calls, key_hash, fence, lock_id_hash)
        ):
            return self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> RedisWaiter:
        """For ``lock()``: a waiter that the holder's release wakes."""
        return RedisWaiter(self, self._listener_of, self._calls._names_of(key))

    def next_turn(
        self,
        key: str,
        *,
        place_ms: int = 0,
        held_ms: int = 0,
        max_wait_ms: int = 0,
        max_delay_ms: int = DEFAULT_MAX_DELAY_MS,
    ) -> Turn:
        """When a refused caller should retry; see ``syncguard.TurnGiver``."""
        return self._runner.run(
            self._calls.next_turn(key, place_ms, held_ms, max_wait_ms, max_delay_ms)
        )

    def end_wait(self, key: str, ticket: str) -> None:
        """End the wait that ``next_turn`` granted to a caller."""
        self._runner.run(self._calls.end_wait(key, ticket))

    def open_extend_channel(self, timeout_ms: float) -> RedisExtendChannel | None:
        """Open a separate connection for heartbeats; None on a cluster and on mocks."""
        if self._pool is None:
            return None
        return self._open_channel(self._pool, timeout_ms)

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

    def open_server_channel(self, server: Hashable, timeout_ms: float) -> RedisExtendChannel:
        """Open a separate connection for heartbeats to a node of the cluster."""
        if not self._clustered:
            raise invalid_argument("only a cluster has several servers")
        node = self._client.get_node(node_name=server)
        pool = None if node is None else runner_pool(self._client.get_redis_connection(node))
        if pool is None:
            raise LockError("ServiceUnavailable", "the cluster no longer has this node")
        try:
            return self._open_channel(pool, timeout_ms)
        except LockError:
            # This is a thread for connecting, so it may wait. If the node is gone, the client
            # notices it here, and asks the others for its replacement.
            with contextlib.suppress(*FAULTS):
                self._client.execute_command("PING", target_nodes=node)
            raise

    def _open_channel(self, pool: Pool, timeout_ms: float) -> RedisExtendChannel:
        channel = RedisExtendChannel.open(self._calls, pool, timeout_ms)
        # No threading lock: a fork could copy it while it is locked.
        open_ones = [known for known in self._channels if known() is not None]
        self._channels = [*open_ones, weakref.ref(channel)]
        return channel

    def close(self) -> None:
        """Close our own connections, and the client if ``from_url`` made it.

        Connections of another client return to its pool.
        """
        for known in self._channels:
            channel = known()
            if channel is not None:
                channel.close_if_idle()
        self._runner.close()
        if self._owns_client:
            if isinstance(self._runner, ClusterRunner):
                self._runner.map.client_is_closed = True
            self._client.close()

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]:
        """For a waiter: one attempt as a value, so that its lock id is known before it runs."""
        if not undo_thread.is_running:
            undo_thread.start()
        return self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)

    def run_acquire(
        self, call: Call[Granted | Refusal], ttl_ms: int, deadline: Deadline | None = None
    ) -> Acquired | Refusal:
        """Run an acquire. A grant that arrives after its TTL has ended is no grant."""
        sent_at_ms = holder_clock_ms()
        try:
            answer = self._runner.run(call, deadline)
            if isinstance(answer, Refusal):
                return answer
            if holder_clock_ms() < sent_at_ms + ttl_ms:
                return Acquired(*answer, ttl_ms, sent_at_ms, self._disposal, self)
        except BaseException as error:
            self._undo_unanswered(error, call, call.lock_id, call.keys[0], ttl_ms)
            raise
        self._undo(answer.lock_id, call.keys[0], ttl_ms)  # granted too late
        return Refusal()

    def ring(self, bell: str, deadline: Deadline) -> None:
        """For a waiter: tell the listener of this process that it has a new waiter."""
        # If this fails, the waiter is not woken. Its next attempt reports the error.
        with contextlib.suppress(LockError):
            self._runner.run(self._calls.ring(bell), deadline)

    def undo(self, lock_id: object, /, *, key: str | None = None, ttl_ms: int = 0) -> None:
        """Release a lock that nobody holds, in the background: ``syncguard.backend.Undoes``."""
        assert isinstance(lock_id, str)
        name = "" if key is None else self._calls.names.of(key).lock
        # Wait for the first try, because an interrupt may end this process. Other tries follow.
        self._undo(lock_id, name, ttl_ms).tried.wait(EXIT_TIMEOUT_S)

    def _undo_unanswered(
        self,
        error: BaseException,
        call: Call[Granted | Refusal] | Call[Granted | AbsenceReason],
        lock_id: str | None,
        lock_name: str,
        ttl_ms: int,
    ) -> None:
        """After an error: undo the request, if the server may have executed it."""
        if not call.may_be_sent:
            return
        assert lock_id is not None
        undo = self._undo(lock_id, lock_name, ttl_ms)
        if is_interrupt(error) or isinstance(error, TooFewReplicas):
            undo.tried.wait(EXIT_TIMEOUT_S)

    def _undo_target(self, lock_id: str) -> Callable[[], Target]:
        def target() -> Target:
            name = self._calls.names.index(lock_id)
            if isinstance(self._runner, ClusterRunner):
                self._runner.map.require_nodes()
            try:
                pool = self._pool_of(name)
            except FAULTS:  # no node has this slot
                if isinstance(self._runner, ClusterRunner):
                    self._runner.map.update(name)
                raise
            if pool is None:
                return UndoOnClient(self._runner)
            if isinstance(self._runner, ClusterRunner):
                return UndoOnNode(UndoOnPool(pool), self._runner.map.update)
            return UndoOnPool(pool)

        return target

    def _listener_of(self, names: LockNames) -> WakeListener | None:
        pool = None
        with contextlib.suppress(*FAULTS):  # no node has this slot: only sleep
            pool = self._pool_of(names.wake)
        if pool is None:
            return None
        return WakeListener.on(pool, names.space, clustered=self._clustered)

    def _pool_of(self, name: str) -> Pool | None:
        if not self._clustered:
            return self._pool
        node = node_of(self._client, name)
        return None if node is None else runner_pool(client_of_node(self._client, node))
