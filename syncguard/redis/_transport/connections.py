"""What we ask of redis-py's connections and pools, beyond its commands. All of it is here.

redis-py spends more time around a command (retries, metrics, callbacks, pool bookkeeping) than on
it. The connection's own send and read do not, and every one of our calls is one of each. What is
private to redis-py or differs between its versions 5 to 8 is touched in this module only.
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
    """What we use of a blocking connection. redis-py itself leaves most of it untyped."""

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
    """For a node of a cluster, which has no pool with asyncio.

    It opens each connection anew, and keeps none: so there is nothing for a user to close.
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
"""A pool smaller than this is somebody's hard limit: we keep no connection of it for ourselves."""


def shared(pool: Pool | AsyncPool, name: str, make: Callable[[], T]) -> T:
    """Something of ours that all backends on one pool share, and that lives as long as the pool."""
    value: T = pool.__dict__.setdefault(f"_syncguard_{name}", make())
    return value


def runner_pool(client: object) -> Pool | None:
    """The pool of a client whose connections are real sockets; None for mocks and clusters."""
    pool = getattr(client, "connection_pool", None)
    if not isinstance(pool, redis.ConnectionPool) or getattr(pool, "cache", None) is not None:
        return None
    kind: Any = pool.connection_class
    # A class that answers can_read by itself (fakeredis) has no socket to send to.
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
    """A connection from the pool, connected and clean."""
    return pool.get_connection(*_pool_arguments(pool))


def give_back_if_out(pool: Pool, connection: Connection) -> None:
    """After an interrupt, which may have struck before the connection was released, or after it.

    Never release without asking: some versions take a connection twice, and hand it out twice.
    """
    queue = getattr(getattr(pool, "pool", None), "queue", None)  # a blocking pool's
    in_use = getattr(pool, "_in_use_connections", ())
    if connection in in_use if queue is None else connection not in queue:
        pool.release(connection)


async def take_async(pool: AsyncPool) -> AsyncConnection:
    """The same for asyncio."""
    return await pool.get_connection(*_pool_arguments(pool))


def _pool_arguments(pool: Pool | AsyncPool) -> tuple[str, ...]:
    # Before 5.3 the pool wanted a command's name; since then it warns of one.
    command = inspect.signature(pool.get_connection).parameters.get("command_name")
    return ("EVALSHA",) if command is not None and command.default is command.empty else ()


def private_connection(pool: Pool, timeout_s: float) -> Connection:
    """A connection outside the pool for one purpose: no retries, and no wait beyond the timeout."""
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
    """hiredis's own packer, without redis-py's wrapping, which costs twice the packing."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    pack: Callable[[Any], bytes] = pack_command
    return pack


def place_of(client: object) -> str:
    """Where the server of a client or a pool is, for error texts. Empty where that is not known.

    Host, port and database only: never a user name, and never the whole settings, which hold the
    password.
    """
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _cluster_place(client)
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


def _cluster_place(client: Any) -> str:
    node = client.get_default_node()
    return "" if node is None else f"the cluster of {_host_and_port(node.host, node.port)}"


def _host_and_port(host: object, port: object) -> str:
    name = str(host or "localhost")
    return f"{f'[{name}]' if ':' in name else name}:{port or 6379}"


def socket_timeout_ms(pool: Pool | AsyncPool) -> float | None:
    """How long the client waits for a reply, or None for ever."""
    seconds = pool.connection_kwargs.get("socket_timeout")
    return None if seconds is None else float(seconds) * 1000


async def is_closed(connection: AsyncConnection) -> bool:
    """Whether the server has hung up on a connection that we kept."""
    await asyncio.sleep(0)  # the loop notices a closed socket only when it runs
    reader = getattr(connection, "_reader", None)
    return reader is None or reader.at_eof() or not connection.is_connected


def socket_of(connection: Connection) -> socket.socket:
    """The socket itself. kombu uses the same attribute, so it will stay."""
    sock: socket.socket | None = getattr(connection, "_sock", None)
    if sock is None:
        raise redis.ConnectionError("not connected")
    return sock
