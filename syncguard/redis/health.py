"""Asks the Redis of a backend for its state: whether it is reachable and configured for locks.

``server_report.py`` reads the answers. On a cluster, the client's default node is asked.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

from syncguard._backend.call_steps import run_steps, run_steps_async
from syncguard._backend.listing_and_health import Health
from syncguard.clock import redis_server_time_ms
from syncguard.errors import invalid_argument
from syncguard.redis._transport.connections import describe_server
from syncguard.redis._transport.error_codes import error_code, lock_error
from syncguard.redis.backend_config import Configured
from syncguard.redis.script_calls import Call, Calls
from syncguard.redis.server_report import ServerReport, read_health, read_report

T = TypeVar("T")
Command = tuple[Any, ...]
Steps = Generator[Sequence[Command], list[Any], T]
"""Yields the commands of one request, and receives their replies: an error is a reply, too."""


def inspect_server(backend: Configured) -> ServerReport:
    """Request the state of a blocking backend's server. Raises LockError."""
    return _run(_client_of(backend), _state(backend._calls, ()))[0]


def server_time_ms(backend: Configured) -> int:
    """The server's time. A lock's ``expires_at_ms`` and ``acquired_at_ms`` use the same clock."""
    client = _client_of(backend)
    return _with_lock_errors(client, lambda: redis_server_time_ms(client.time()))


def health_of_server(backend: Configured) -> Health:
    """The state of the server and the backend's counts, in two round trips.

    Not for a cluster, where the counts are on several nodes.
    """
    return _run(_client_of(backend), _health(backend._calls))


async def async_health_of_server(backend: Configured) -> Health:
    """The same for asyncio."""
    client: Any = backend._client

    async def send(commands: Sequence[Command]) -> list[Any]:
        async with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        return replies

    return await _run_async(client, send, _health(backend._calls))


async def async_inspect_cluster(backend: Configured) -> ServerReport:
    """Request the state of a node of a cluster. Its asyncio client has no pipeline for one node."""
    client: Any = backend._client

    async def reply(command: Command) -> object:
        try:
            return await client.execute_command(*command, target_nodes=client.get_default_node())
        except Exception as error:
            return error

    async def send(commands: Sequence[Command]) -> list[Any]:
        await client.initialize()
        return [await reply(command) for command in commands]

    return (await _run_async(client, send, _state(backend._calls, ())))[0]


def _health(calls: Calls) -> Steps[Health]:
    counts = [calls.counts(space) for space in calls.names.spaces()]
    report, numbers = yield from _state(calls, counts)
    return read_health(report, sum(live for live, _ in numbers), sum(n for _, n in numbers))


def _state(calls: Calls, more: Sequence[Call[T]]) -> Steps[tuple[ServerReport, list[T]]]:
    """The state of a server, and the results of some script calls."""
    scripts = [("EVAL", call.script.text, len(call.keys), *call.keys, *call.args) for call in more]
    info, saved, *replies = yield [("INFO",), ("CONFIG GET", "save"), *scripts]
    if isinstance(info, Exception) and error_code(info) == "AuthFailed":
        info = {}  # the rest needs other rights, and is worth reporting
    _raise_errors(info, *replies)
    # A separate request: INFO in the same round trip would make both measurements less exact.
    sent_at_ms = time.time() * 1000
    [now] = yield [("TIME",)]
    received_at_ms = time.time() * 1000
    _raise_errors(now)
    report = read_report(
        info,
        save=_save_points(saved),
        sent_at_ms=sent_at_ms,
        received_at_ms=received_at_ms,
        server_ms=now[0] * 1000 + now[1] / 1000,
        fence_floor=bool(calls._floor),
    )
    return report, [call.read(reply) for call, reply in zip(more, replies, strict=True)]


def _run(client: Any, steps: Steps[T]) -> T:
    def send(commands: Sequence[Command]) -> list[Any]:
        with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    return _with_lock_errors(client, lambda: run_steps(send, steps))


async def _run_async(
    client: object, send: Callable[[Sequence[Command]], Awaitable[list[Any]]], steps: Steps[T]
) -> T:
    try:
        return await run_steps_async(send, steps)
    except Exception as error:
        raise lock_error(error, server=describe_server(client)) from error


def _raise_errors(*replies: object) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def _client_of(backend: Configured) -> Any:
    if backend.is_async:
        raise invalid_argument("the state of a server can only be read with a blocking backend")
    client = backend._client
    if not backend._clustered:
        return client
    # The client may have to find its nodes first.
    return _with_lock_errors(client, lambda: client.get_default_node().redis_connection)


def _save_points(reply: object) -> str | None:
    if not isinstance(reply, dict):  # an error: hosted Redis often disables CONFIG
        return None
    value = reply.get("save", reply.get(b"save"))
    return value.decode() if isinstance(value, bytes) else value


def _with_lock_errors(client: object, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:
        raise lock_error(error, server=describe_server(client)) from error
