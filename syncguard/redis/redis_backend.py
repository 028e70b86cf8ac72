"""``RedisBackend``: locks on Redis, blocking.

A thin driver over ``Calls``. Each method makes a call (which checks its input), checks the
signal, and runs the call. In addition it undoes an interrupted acquire: otherwise the lock would
stay held until its TTL ends, without a holder.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

import redis
import redis.asyncio

from syncguard._backend.listing_and_health import Health, LockPage, Wanted, sanitized
from syncguard._backend.optional import DEFAULT_MAX_DELAY_MS, Refusal, Turn
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard.clock import holder_clock_ms
from syncguard.constants import DEFAULT_KEY_PREFIX, DEFAULT_TTL_MS
from syncguard.errors import LockError, invalid_argument, is_interrupt
from syncguard.lock import Lockable
from syncguard.redis import listing
from syncguard.redis._transport.connections import Pool, runner_pool
from syncguard.redis._transport.pipeline import run_one_by_one, run_pipelined
from syncguard.redis._transport.runner import CommandRunner, ConnectionRunner, Runner
from syncguard.redis.backend_config import UNDO_PAUSES_S, Configured, client_from_url
from syncguard.redis.health import health_of_server, inspect_server, read_health
from syncguard.redis.heartbeat_channel import RedisExtendChannel
from syncguard.redis.replies import Granted
from syncguard.redis.script_calls import Call, FenceFloor
from syncguard.redis.waiter import RedisWaiter
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


class RedisBackend(Configured, Lockable):
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
        )
        self._pool = runner_pool(client)
        self._runner: Runner = (
            CommandRunner(client) if self._pool is None else ConnectionRunner(self._pool)
        )
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
        **client_options: object,
    ) -> Self:
        """Make a backend and its client from a URL; ``close()`` closes both."""
        client = client_from_url(redis.Redis.from_url, url, client_options)
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

    def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended:
        """Try once to acquire the lock."""
        call = self._calls.acquire(key, ttl_ms, holder)
        if ttl_ms < SHORT_TTL_MS:
            warn_of_short_ttl(ttl_ms)
        if signal is not None:
            check_signal(signal)
        answer = self.run_acquire(call, ttl_ms)
        return CONTENDED if isinstance(answer, Refusal) else answer

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        """Release the lock. Idempotent, and never releases the lock of another holder."""
        call = self._calls.release(lock_id)
        if signal is not None:
            check_signal(signal)
        return self._runner.run(call)

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        """Release many locks in few round trips. Returns a result or an error for each."""
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
        call = self._calls.adopt(lock_id, ttl_ms, holder)
        if signal is not None:
            check_signal(signal)
        sent_at_ms = holder_clock_ms()
        try:
            answer = self._runner.run(call)
            if isinstance(answer, str):
                return NotAdopted(answer)
            return self._acquired(answer, ttl_ms, sent_at_ms)
        except BaseException as error:
            if is_interrupt(error):
                self.undo(call.args[1])
            raise

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        """Whether the lock is held now."""
        call = self._calls.is_locked(key)
        if signal is not None:
            check_signal(signal)
        return self._runner.run(call)

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        """Read a live lock, sanitized. Only for diagnostics: do not decide about writes with it."""
        info = self.lookup_raw(key=key, lock_id=lock_id, signal=signal)
        return None if info is None else sanitized(info)

    def lookup_raw(
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
        return self._runner.run(call)

    def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        """The live locks, soonest to expire first. Reads only the returned locks; never scans."""
        return list(map(sanitized, self.live_locks_raw(limit, offset)))

    def live_locks_raw(self, limit: int = 100, offset: int = 0) -> list[LockInfoDebug]:
        """The same with raw keys and lock ids. SENSITIVE: for administrators' tools."""
        return self.page_raw(limit, offset).locks

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """The same, with the total number of live locks and the server's time. SENSITIVE.

        One request for up to a thousand locks; on a cluster, one for each of its buckets.
        """
        return self._drive(listing.page(self._calls, limit, offset))

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        """Find live locks by a condition that only this process can evaluate. SENSITIVE.

        Finds every lock that is held during the whole search. Pass the fence and the time of the
        acquisition if they are known: then the server returns only locks that match both. Do not
        decide about writes with the result.
        """
        return self._drive(
            listing.find(
                self._calls, is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
            )
        )

    def count_live_locks(self) -> int:
        """The number of live locks."""
        return self._drive(listing.counts(self._calls))[0]

    def count_fence_counters(self) -> int:
        """The number of fence counters ever created. They are never deleted."""
        return self._drive(listing.counts(self._calls))[1]

    def health(self) -> Health:
        """The state of the server, and what an operator should change. Raises LockError."""
        if self._clustered:
            return read_health(inspect_server(self), *self._drive(listing.counts(self._calls)))
        return health_of_server(self)

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        """For administrators: release a lock if its holder is still the one they saw."""
        for info in self._drive(listing.holder(self._calls, key_hash, fence, lock_id_hash)):
            return self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def open_waiter(self, key: str) -> RedisWaiter:
        """For ``lock()``: a waiter that the holder's release wakes."""
        wake = self._calls.names.of(key).wake
        return RedisWaiter(self, lambda: self._pool_of(wake), key, wake)

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
        channel = RedisExtendChannel.open(self._calls, self._pool, timeout_ms)
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
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]:
        """For a waiter: one attempt as a value, so that its lock id is known before it runs."""
        return self._calls.acquire(key, ttl_ms, holder, wait_ms=wait_ms)

    def run_acquire(self, call: Call[Granted | Refusal], ttl_ms: int) -> Acquired | Refusal:
        """Run an acquire. If it is interrupted, release the lock."""
        sent_at_ms = holder_clock_ms()
        try:
            answer = self._runner.run(call)
            if isinstance(answer, Refusal):
                return answer
            return self._acquired(answer, ttl_ms, sent_at_ms)
        except BaseException as error:
            # Ctrl-C, a time limit, or the loss of another lock: the caller cannot release this one.
            if is_interrupt(error):
                self.undo(call.lock_id)
            raise

    def undo(self, lock_id: object) -> None:
        """Release the lock that an interrupted request may have acquired."""
        assert isinstance(lock_id, str)
        for pause in UNDO_PAUSES_S:
            time.sleep(pause)
            with contextlib.suppress(LockError):
                if self.release(lock_id).ok:
                    return

    def _acquired(self, granted: Granted, ttl_ms: int, sent_at_ms: float) -> Acquired:
        return Acquired(
            granted.lock_id,
            granted.fence,
            granted.expires_at_ms,
            granted.key,
            ttl_ms,
            sent_at_ms,
            self._disposal,
            self,
        )

    def _drive(self, steps: listing.Steps[T]) -> T:
        result: object = None
        while True:
            try:
                call = steps.send(result)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            result = self._runner.run(call)

    def _pool_of(self, name: str) -> Pool | None:
        if not self._clustered:
            return self._pool
        node = self._client.get_node_from_key(name)
        return runner_pool(node.redis_connection) if node is not None else None
