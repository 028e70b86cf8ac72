"""Everything we use of redis-py's connections and pools, beyond its commands.

redis-py spends more time around a command (retries, metrics, callbacks, pool bookkeeping) than on
the command. A connection's own send and read do not have this cost, and each of our calls needs
one of each. Only this module uses what is private to redis-py or differs between versions 5 to 8.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar, cast

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as _AsyncConnection
from redis.asyncio.retry import Retry as _AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection as _Connection
from redis.retry import Retry as _Retry

Command = tuple[str, ...]


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
    def pack_command(self, *command: str) -> list[bytes]: ...
    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]: ...
    def send_packed_command(self, packed: list[bytes]) -> None: ...
    def send_command(self, *command: str) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def read_response(self, disable_decoding: bool = False) -> object: ...


class AsyncConnection(Protocol):
    """What we use of an asyncio connection."""

    retry: AsyncRetrying
    is_connected: bool

    async def connect(self) -> object: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]: ...
    async def send_packed_command(self, command: list[bytes]) -> None: ...
    async def send_command(self, *command: str) -> None: ...
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


T = TypeVar("T")

LARGE_POOL: Final = 8
"""A smaller pool is a limit that the user chose: we keep no connection of it between calls."""


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
    return cast("Pool", pool) if is_real else None


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
    return pool.get_connection(*_pool_arguments(pool))


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
    return await pool.get_connection(*_pool_arguments(pool))


def _pool_arguments(pool: Pool | AsyncPool) -> tuple[str, ...]:
    # Before redis-py 5.3 the pool requires a command name; since 5.3 it warns about one.
    command = inspect.signature(pool.get_connection).parameters.get("command_name")
    return ("EVALSHA",) if command is not None and command.default is command.empty else ()


def private_connection(pool: Pool, timeout_s: float) -> Connection:
    """Make a connection outside the pool, with no retries and no wait beyond the timeout."""
    settings = _bounded(pool.connection_kwargs, timeout_s)
    return pool.connection_class(**settings, retry=_Retry(NoBackoff(), 0))


def private_async_connection(pool: AsyncPool, timeout_s: float) -> AsyncConnection:
    """The same for asyncio."""
    settings = _bounded(pool.connection_kwargs, timeout_s)
    return pool.connection_class(**settings, retry=_AsyncRetry(NoBackoff(), 0))


def _bounded(settings: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    bounded = {k: v for k, v in settings.items() if k not in ("retry", "retry_on_error")}
    for name in ("socket_timeout", "socket_connect_timeout"):
        chosen = settings.get(name)
        bounded[name] = timeout_s if chosen is None else min(chosen, timeout_s)
    bounded["health_check_interval"] = 0
    return bounded


def packer() -> Callable[[Command], bytes] | None:
    """Return hiredis's packer. redis-py's wrapper around it costs twice as much as the packing."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    pack: Callable[[Any], bytes] = pack_command
    return pack


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
        return f"the Sentinel service {service!r}, {database}"
    if settings.get("path"):
        return f"{settings['path']}, {database}"
    return f"{_host_and_port(settings.get('host'), settings.get('port'))}, {database}"


def _describe_cluster(client: Any) -> str:
    node = client.get_default_node()
    return "" if node is None else f"the cluster of {_host_and_port(node.host, node.port)}"


def _host_and_port(host: object, port: object) -> str:
    name = str(host or "localhost")
    return f"{f'[{name}]' if ':' in name else name}:{port or 6379}"


def socket_timeout_ms(pool: Pool | AsyncPool) -> float | None:
    """How long the client waits for a reply; None: no limit."""
    seconds = pool.connection_kwargs.get("socket_timeout")
    return None if seconds is None else float(seconds) * 1000


async def is_closed(connection: AsyncConnection) -> bool:
    """Whether the server has closed a connection that we kept."""
    await asyncio.sleep(0)  # the loop detects a closed socket only when it runs
    reader = getattr(connection, "_reader", None)
    return reader is None or reader.at_eof() or not connection.is_connected


def socket_of(connection: Connection) -> socket.socket:
    """Return the socket. kombu uses the same private attribute, so it is unlikely to change."""
    sock: socket.socket | None = getattr(connection, "_sock", None)
    if sock is None:
        raise redis.ConnectionError("not connected")
    return sock
