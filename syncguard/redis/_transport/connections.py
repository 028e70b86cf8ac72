"""Everything we use of redis-py's connections and pools, beyond its commands.

redis-py spends more time around a command (retries, metrics, callbacks, pool bookkeeping) than on
the command. A connection's own send and read do not have this cost, and each of our calls needs
one of each. Only this module uses what is private to redis-py or differs between versions 5 to 8.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from queue import Empty
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as _AsyncConnection
from redis.asyncio.retry import Retry as _AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection as _Connection
from redis.retry import Retry as _Retry

from syncguard.errors import InvalidArgument
from syncguard.redis.cluster_client import AsyncNamedCluster, ClusterOnFirstUse

_recorder: Any = None
_attributes: Any = None
with contextlib.suppress(ImportError):  # redis-py 5 and 6 have no metrics
    _recorder = importlib.import_module("redis.observability.recorder")
    _attributes = importlib.import_module("redis.observability.attributes")


class Retrying(Protocol):
    """A client's retry policy."""

    def call_with_retry(
        self, do: Callable[[], object], fail: Callable[[Exception], object]
    ) -> object: ...


class AsyncRetrying(Protocol):
    """The same for asyncio."""

    def call_with_retry(
        self, do: Callable[[], Awaitable[object]], fail: Callable[[Exception], Awaitable[object]]
    ) -> Awaitable[object]: ...


class Connection(Protocol):
    """What we use of a blocking connection. redis-py has no types for most of it."""

    pid: int
    retry: Retrying

    def connect(self) -> object: ...
    def disconnect(self) -> object: ...
    def send_packed_command(self, packed: list[bytes]) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def read_response(self, disable_decoding: bool = False) -> object: ...


class AsyncConnection(Protocol):
    """What we use of an asyncio connection."""

    retry: AsyncRetrying
    is_connected: bool

    async def connect(self) -> object: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: list[bytes]) -> None: ...
    async def read_response(
        self, disable_decoding: bool = False, timeout: float | None = None
    ) -> object: ...


class Pool(Protocol):
    """What we use of a blocking pool."""

    max_connections: int
    connection_kwargs: Mapping[str, Any]
    connection_class: Callable[..., Connection]
    get_connection: Callable[..., Connection]

    def release(self, connection: Connection) -> object: ...


class AsyncPool(Protocol):
    """What we use of an asyncio pool."""

    max_connections: int
    connection_kwargs: Mapping[str, Any]
    connection_class: Callable[..., AsyncConnection]

    def get_connection(self, *command: str) -> Awaitable[AsyncConnection]: ...

    async def release(self, connection: AsyncConnection) -> object: ...


class AsyncNodePool:
    """A pool for a cluster node, because redis-py's asyncio cluster has none.

    It opens a new connection each time and keeps none, so a user does not have to close it.
    """

    def __init__(self, node: Any) -> None:
        self.max_connections: int = node.max_connections
        self.connection_kwargs: Mapping[str, Any] = node.connection_kwargs
        self.connection_class: Callable[..., AsyncConnection] = node.connection_class

    async def get_connection(self, *_command: str) -> AsyncConnection:
        once = {**self.connection_kwargs, "retry": _AsyncRetry(NoBackoff(), 0)}
        connection = self.connection_class(**once)
        await connection.connect()
        return connection

    async def release(self, connection: AsyncConnection) -> None:
        await connection.disconnect(nowait=True)


class RetryPolicy(NamedTuple):
    """The numbers of a client's retry policy."""

    retries: int
    """Below 0: no limit."""
    errors: tuple[type[Exception], ...]
    pause_s: Callable[[int], float]
    """The pause after so many failures."""


T = TypeVar("T")
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

LARGE_POOL: Final = 16
"""A smaller pool is a limit that the user chose, perhaps for as many commands at once.

We keep no connection of it between calls, and use none for waiting.
"""


def shared(pool: Pool | AsyncPool, name: str, make: Callable[[], T]) -> T:
    """Return an object that all backends on one pool share, and that exists as long as the pool."""
    value: T = pool.__dict__.setdefault(f"_syncguard_{name}", make())
    return value


def runner_pool(client: object) -> Pool | None:
    """Return the client's pool if its connections are real sockets; None for mocks and clusters."""
    pool = getattr(client, "connection_pool", None)
    if not isinstance(pool, redis.ConnectionPool) or getattr(pool, "cache", None) is not None:
        return None
    kind: Any = pool.connection_class
    # A class with its own can_read (fakeredis) has no socket.
    is_real = issubclass(kind, _Connection) and kind.can_read is _Connection.can_read
    if not is_real:
        return None
    _known_pools.add(pool)
    for sentinel in _sentinels_of(pool):
        _known_pools.add(sentinel.connection_pool)
    return cast("Pool", pool)


_known_pools: Final[weakref.WeakSet[redis.ConnectionPool]] = weakref.WeakSet()


def _unlock_pools_after_fork() -> None:
    """Give the pools of a forked child locks that are free.

    Another thread of the parent may have been in a pool during the fork. It does not exist in the
    child, so its lock is never released. redis-py 8 acquires that lock when it notices the fork.
    """
    for pool in list(_known_pools):
        state: dict[str, Any] = pool.__dict__
        for name in ("_lock", "_fork_lock"):
            state[name] = threading.RLock()
        if "_locked" in state:  # a blocking pool's note that it holds the lock
            state["_locked"] = False


_known_clusters: Final[weakref.WeakSet[redis.RedisCluster]] = weakref.WeakSet()


def unlock_cluster_after_fork(client: redis.RedisCluster) -> None:
    """The same for the locks of a client of a cluster, which redis-py 8 holds during I/O."""
    _known_clusters.add(client)


def _unlock_clusters_after_fork() -> None:
    for client in list(_known_clusters):
        if not is_discovered(client):
            continue
        inner: Any = client.discover() if isinstance(client, ClusterOnFirstUse) else client
        manager = inner.nodes_manager
        inner._lock = manager._lock = threading.RLock()  # redis-py has one for both
        if hasattr(manager, "_initialization_lock"):
            manager._initialization_lock = threading.RLock()
        for node in getattr(manager, "nodes_cache", {}).values():
            runner_pool(node.redis_connection)  # its pool is unlocked with the others


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_clusters_after_fork)
    os.register_at_fork(after_in_child=_unlock_pools_after_fork)


def async_runner_pool(client: object) -> AsyncPool | None:
    """The same for an asyncio client."""
    pool = getattr(client, "connection_pool", None)
    if not isinstance(pool, redis.asyncio.ConnectionPool):
        return None
    kind: Any = pool.connection_class
    is_real = issubclass(kind, _AsyncConnection) and kind.disconnect is _AsyncConnection.disconnect
    return cast("AsyncPool", pool) if is_real else None


def take(pool: Pool) -> Connection:
    """Take a connection from the pool; it is connected and has no unread reply."""
    return pool.get_connection(*_pool_arguments(type(pool)))


def take_to_connect(pool: Pool, wait_s: float) -> Connection | None:
    """Take a connection without connecting it. It has no unread reply. None: the pool is exhausted.

    Waits at most so long for a connection of a pool that waits. A pool that does not wait raises
    redis-py's MaxConnectionsError. For callers that connect within a time limit: the pool's own
    method connects within the limits of the client, and waits as long as the pool says.
    """
    inner: Any = pool
    if getattr(inner, "_in_maintenance", False):
        return take(pool)
    connection: Any = None
    try:
        inner._checkpid()
        queue = getattr(inner, "pool", None)
        if queue is None:
            with inner._lock:
                idle = inner._available_connections
                connection = idle.pop() if idle else inner.make_connection()
                inner._in_use_connections.add(connection)
        else:
            try:
                connection = queue.get(block=True, timeout=wait_s)
            except Empty:
                return None
            if connection is None:
                connection = inner.make_connection()
        _record_taken(pool)
        if connection._sock is not None and _has_data(connection):
            connection.disconnect()  # closed by the server, or with an unread reply
    except BaseException:
        if connection is not None:
            release_if_in_use(pool, connection)
        raise
    return cast("Connection", connection)


def _has_data(connection: Connection) -> bool:
    try:
        return connection.can_read(0)
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


def _record_taken(pool: Pool) -> None:
    """Count the connection as used, as the pool's own method does since redis-py 7."""
    if _recorder is not None:
        name = _attributes.get_pool_name(pool)
        for state, change in (
            (_attributes.ConnectionState.IDLE, -1),
            (_attributes.ConnectionState.USED, 1),
        ):
            _recorder.record_connection_count(
                pool_name=name, connection_state=state, counter=change
            )


def retry_policy(connection: Connection | AsyncConnection) -> RetryPolicy:
    """The retry policy of the client, also while a deadline replaces it."""
    policy: Any = getattr(connection, "__dict__", {}).get("retry") or connection.retry
    return RetryPolicy(policy._retries, policy._supported_errors, policy._backoff.compute)


def release_if_in_use(pool: Pool, connection: Connection) -> None:
    """Release a connection after an interrupt, unless it was released before the interrupt.

    Never release twice: some versions of redis-py would then give it to two callers.
    """
    queue = getattr(getattr(pool, "pool", None), "queue", None)  # a blocking pool's
    in_use = getattr(pool, "_in_use_connections", ())
    if connection in in_use if queue is None else connection not in queue:
        pool.release(connection)


async def take_async(pool: AsyncPool) -> AsyncConnection:
    """The same for asyncio."""
    return await pool.get_connection(*_pool_arguments(type(pool)))


@lru_cache
def _pool_arguments(kind: type[Pool | AsyncPool]) -> tuple[str, ...]:
    # Before redis-py 5.3 the pool requires a command name; since 5.3 it warns about one.
    # Cached: to inspect the signature takes as long as taking the connection.
    command = inspect.signature(kind.get_connection).parameters.get("command_name")
    return ("EVALSHA",) if command is not None and command.default is command.empty else ()


def private_connection(pool: Pool, timeout_s: float) -> Connection:
    """Make a connection outside the pool, with no retries and no wait beyond the timeout."""
    settings = _bounded(pool.connection_kwargs, timeout_s)
    return pool.connection_class(**settings, retry=_Retry(NoBackoff(), 0))


def private_async_connection(
    pool: AsyncPool, timeout_s: float, **overrides: object
) -> AsyncConnection:
    """The same for asyncio. ``overrides`` replace settings of the pool."""
    settings = _bounded({**pool.connection_kwargs, **overrides}, timeout_s)
    return pool.connection_class(**settings, retry=_AsyncRetry(NoBackoff(), 0))


def _bounded(settings: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    bounded = {k: v for k, v in settings.items() if k not in ("retry", "retry_on_error")}
    for name in ("socket_timeout", "socket_connect_timeout"):
        chosen = settings.get(name)
        bounded[name] = timeout_s if chosen is None else min(chosen, timeout_s)
    bounded["health_check_interval"] = 0
    return bounded


def pipelined_connection(pool: AsyncPool) -> AsyncConnection:
    """Make the connection that all short calls of one event loop share. It is not connected.

    Protocol 2, and no notifications: a message that answers no request would break the order.
    """
    settings = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if "maint_notifications" not in name and name not in ("retry", "retry_on_error")
    }
    settings |= {"protocol": 2, "health_check_interval": 0}
    return pool.connection_class(**settings, retry=_AsyncRetry(NoBackoff(), 0))


def pool_retry_policy(pool: AsyncPool) -> RetryPolicy:
    """The retry policy of the client."""
    return retry_policy(pool.connection_class(**pool.connection_kwargs))


def can_pipeline(pool: AsyncPool) -> bool:
    """Whether ``adopt_transport`` and ``register`` will find what they need."""
    slots = getattr(_AsyncConnection, "__slots__", ())
    return {"_reader", "_writer"} <= set(slots) and hasattr(pool, "_in_use_connections")


def adopt_transport(
    connection: AsyncConnection, make: Callable[[asyncio.BaseProtocol], ProtocolT]
) -> tuple[asyncio.Transport, ProtocolT, bytes]:
    """Let another protocol receive what arrives. Also returns what has arrived already.

    ``make`` makes it; its argument is the protocol that it replaces.

    Keep the connection object as long as the transport is used: it closes it when it is collected.
    """
    inner: Any = connection
    reader, transport = inner._reader, inner._writer.transport
    protocol = make(transport.get_protocol())
    transport.set_protocol(protocol)
    return transport, protocol, bytes(reader._buffer)


def drop_transport(connection: AsyncConnection, transport: Any, loop_is_closed: bool) -> None:
    """Forget the transport of a connection, so that its end causes no warning."""
    inner: Any = connection
    inner._reader = inner._writer = None
    if loop_is_closed and transport is not None:
        # Its loop can no longer close it.
        encrypted = getattr(transport, "_ssl_protocol", None)
        plain = transport if encrypted is None else encrypted._transport
        sock = getattr(plain, "_sock", None)
        if sock is not None:
            sock.close()
            plain._sock = None


def leave_other_loops(client: object) -> None:
    """Make sure that no open connection of an asyncio client belongs to another event loop.

    Those of a loop that is closed are closed here: redis-py would use them, and a request would be
    executed whose reply nobody can read. Raises InvalidArgument if a loop is still open.
    """
    loop = asyncio.get_running_loop()
    for connection in _connections_of(client):
        owner: asyncio.AbstractEventLoop | None = getattr(
            getattr(connection, "_reader", None), "_loop", None
        )
        if owner is None or owner is loop:
            continue
        if not owner.is_closed():
            raise InvalidArgument(
                "the connections of this client belong to another event loop, which is still open:"
                " make a client and a backend for each event loop, or close the client in that"
                " loop first. Without a cluster, a client with max_connections of at least"
                f" {LARGE_POOL} works in several event loops"
            )
        transport = connection._writer.transport
        with contextlib.suppress(RuntimeError):  # its loop can do nothing any more
            transport.abort()
        drop_transport(connection, transport, loop_is_closed=True)


def _connections_of(client: Any) -> list[Any]:
    """The connections of an asyncio client or pool; none of a mock."""
    manager = getattr(client, "nodes_manager", None)
    if manager is None:
        pool = getattr(client, "connection_pool", client)
        names = ("_available_connections", "_in_use_connections")
        return [each for name in names for each in getattr(pool, name, ())]
    nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
    return [each for node in nodes for each in getattr(node, "_connections", ())]


def register(pool: AsyncPool, connection: AsyncConnection) -> None:
    """Count the connection as one in use, so that closing the client closes it too."""
    inner: Any = pool
    inner._in_use_connections.add(connection)


def unregister(pool: AsyncPool, connection: AsyncConnection) -> None:
    inner: Any = pool
    inner._in_use_connections.discard(connection)


def describe_server(client: object) -> str:
    """Return the address of the server of a client or a pool, for error texts. Empty if unknown.

    Only host, port and database: never a user name, and never all settings, which contain the
    password.
    """
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _describe_cluster(client)
    pool = getattr(client, "connection_pool", client)
    settings = getattr(pool, "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        return ""
    database = f"database {settings.get('db') or 0}"
    service = getattr(pool, "service_name", None)
    if service is not None:
        places = sorted(_address_of(each) for each in _sentinels_of(pool))
        return f"the Sentinel service {service!r} of {', '.join(places)}, {database}"
    if settings.get("path"):
        return f"{settings['path']}, {database}"
    return f"{_host_and_port(settings.get('host'), settings.get('port'))}, {database}"


def _sentinels_of(pool: Any) -> list[Any]:
    """The clients that ask the Sentinels for the master of this pool."""
    return list(getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()))


def _address_of(client: Any) -> str:
    settings = client.connection_pool.connection_kwargs
    return _host_and_port(settings.get("host"), settings.get("port"))


def _describe_cluster(client: Any) -> str:
    if isinstance(client, ClusterOnFirstUse | AsyncNamedCluster):  # perhaps not connected yet
        return f"the cluster of {client.syncguard_nodes}"
    node = client.get_default_node()
    return "" if node is None else f"the cluster of {_host_and_port(node.host, node.port)}"


def discover_nodes(client: object) -> None:
    """Let a client of a cluster find its nodes, if it connects on first use. Does I/O."""
    if isinstance(client, ClusterOnFirstUse):
        client.discover()


def node_of(client: Any, name: str) -> Any:
    """The node of a cluster that has this name, by the map of the client, blocking or asyncio.

    As bytes: the client would encode text as its own settings say, and find another slot.
    """
    return client.get_node_from_key(name.encode())


def slot_of(client: Any, name: str) -> int:
    """The slot of a name on a cluster."""
    slot: int = client.keyslot(name.encode())
    return slot


def client_of_node(client: Any, node: Any) -> Any:
    """The client of one node of a cluster. Raises ConnectionError if it has none just now."""
    found = client.get_redis_connection(node)
    if found is None:  # redis-py 5: another thread has dropped it
        raise redis.ConnectionError("the node has no connections")
    return found


def is_discovered(client: object) -> bool:
    """Whether ``discover_nodes`` has nothing to do. No I/O."""
    return not isinstance(client, ClusterOnFirstUse) or client.is_discovered


def _host_and_port(host: object, port: object) -> str:
    name = str(host or "localhost")
    return f"{f'[{name}]' if ':' in name else name}:{port or 6379}"


def socket_timeout_ms(pool: Pool | AsyncPool) -> float | None:
    """How long the client waits for a reply; None: no limit."""
    seconds = pool.connection_kwargs.get("socket_timeout")
    return None if seconds is None else float(seconds) * 1000


def socket_timeout_s(client: object) -> float | None:
    """The same for a client, also of a cluster, in seconds; None also for a mock."""
    settings: object
    if isinstance(client, ClusterOnFirstUse):
        settings = client.syncguard_options  # without a connection
    elif isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        of_cluster: Any = client
        settings = of_cluster.get_connection_kwargs()
    else:
        settings = getattr(getattr(client, "connection_pool", None), "connection_kwargs", None)
    if not isinstance(settings, Mapping):
        return None
    # Without the setting, redis-py's default; since version 8 that is a limit.
    kind: Any = redis.Connection
    seconds = settings.get("socket_timeout", kind().socket_timeout)
    return seconds if isinstance(seconds, int | float) else None


def socket_of(connection: Connection) -> socket.socket:
    """Return the socket. kombu uses the same private attribute, so it is unlikely to change."""
    sock: socket.socket | None = getattr(connection, "_sock", None)
    if sock is None:
        raise redis.ConnectionError("not connected")
    return sock
