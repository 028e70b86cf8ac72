"""Runs a call on an asyncio connection: the asyncio version of ``runner``, with the same calls.

A call that is cancelled between sending and reading closes its connection, so that no later call
reads its reply. The caller has to handle that the server may have executed the call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import redis
from redis.exceptions import NoScriptError

from syncguard.redis._transport.connections import (
    LARGE_POOL,
    AsyncConnection,
    AsyncPool,
    describe_server,
    is_closed,
    shared,
    take_async,
)
from syncguard.redis._transport.error_codes import FAULTS, NOT_SERVING, lock_error, not_serving
from syncguard.redis._transport.runner import FRESH_FOR_S
from syncguard.redis.script_calls import Call

T = TypeVar("T")

_CONNECTION_FAILURES = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.TimeoutError)
_RECONNECT_AFTER: tuple[type[Exception], ...] = (*_CONNECTION_FAILURES, *NOT_SERVING)


class AsyncRunner(Protocol):
    """Runs calls, one round trip each."""

    async def run(self, call: Call[T]) -> T: ...

    async def close(self) -> None: ...


class AsyncConnectionRunner:
    """Runs calls on connections of the client's own pool. Keeps at most one between calls."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._keeps_one = pool.max_connections >= LARGE_POOL
        # Shared by all backends on this pool.
        self._spare: list[tuple[AsyncConnection, float]] = shared(pool, "spare", list)
        self._server = describe_server(pool)

    async def run(self, call: Call[T]) -> T:
        try:
            connection, reused = await self._take(checked=call.if_resent is not None)
            try:
                reply, resent = await self._exchange(connection, call, reused)
            except BaseException as error:
                # Possibly interrupted between sending and reading: the next call must not read the
                # reply to this one.
                if not isinstance(error, redis.ResponseError) or isinstance(error, NOT_SERVING):
                    await connection.disconnect(nowait=True)
                raise
            finally:
                await self._give(connection)
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, server=self._server, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    async def close(self) -> None:
        while self._spare:
            await self._pool.release(self._spare.pop()[0])

    async def _take(self, *, checked: bool) -> tuple[AsyncConnection, bool]:
        if self._spare:
            connection, kept_at = self._spare.pop()
            fresh = time.monotonic() - kept_at <= FRESH_FOR_S
            # As in ConnectionRunner: a call whose result is uncertain when it is sent twice needs a
            # connection that is known to be open.
            if fresh and not checked:
                return connection, True
            try:
                closed = await is_closed(connection)
            except BaseException:
                # Cancelled before anything was sent: keep the connection. Do it without an await,
                # which a second cancellation could interrupt. So two may be kept for a moment.
                self._spare.append((connection, kept_at))
                raise
            if closed:
                # Disconnect here: redis-py's pool may not detect it, and would return it again.
                await connection.disconnect(nowait=True)
            elif fresh:
                return connection, True
            await self._pool.release(connection)
        return await take_async(self._pool), False

    async def _give(self, connection: AsyncConnection) -> None:
        if self._keeps_one and not self._spare:
            self._spare.append((connection, time.monotonic()))
        else:
            await self._pool.release(connection)

    async def _exchange(
        self, connection: AsyncConnection, call: Call[T], reused: bool
    ) -> tuple[object, bool]:
        try:
            return await _send_and_read(connection, call), False
        except _RECONNECT_AFTER as error:
            await connection.disconnect(nowait=True)
            # As in ConnectionRunner: the current server may not be the one of this connection.
            timed_out = isinstance(error, redis.TimeoutError | TimeoutError | asyncio.TimeoutError)
            fresh_try = isinstance(error, NOT_SERVING) or (reused and not timed_out)
            return await self._retry(connection, call, error, counts=not fresh_try)

    async def _retry(
        self, connection: AsyncConnection, call: Call[T], error: Exception, *, counts: bool
    ) -> tuple[object, bool]:
        """As in ConnectionRunner: retry as the client's policy defines."""
        failures = [error] if counts else []
        resent = not isinstance(error, NOT_SERVING)

        async def attempt() -> object:
            if failures:
                raise failures.pop()
            return await _send_and_read(connection, call)

        async def clean_up(error: Exception) -> None:
            nonlocal resent
            resent = resent or not isinstance(error, NOT_SERVING)
            await connection.disconnect(nowait=True)

        reply = await connection.retry.call_with_retry(attempt, clean_up)
        return reply, resent


async def _send_and_read(connection: AsyncConnection, call: Call[Any]) -> object:
    script, keys = call.script, call.keys
    await connection.send_command("EVALSHA", script.sha, str(len(keys)), *keys, *call.args)
    try:
        try:
            return await connection.read_response(disable_decoding=True)
        except NoScriptError:
            await connection.send_command("EVAL", script.text, str(len(keys)), *keys, *call.args)
            return await connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        raise not_serving(error) or error from None


class AsyncCommandRunner:
    """Runs calls through the client's ``evalsha`` or, where a mock has none, ``eval``."""

    def __init__(self, client: Any) -> None:
        self._eval: Callable[..., Awaitable[object]] = client.eval
        self._evalsha: Callable[..., Awaitable[object]] | None = getattr(client, "evalsha", None)
        self._client = client

    async def run(self, call: Call[T]) -> T:
        arguments: tuple[str | int, ...] = (len(call.keys), *call.keys, *call.args)
        try:
            return call.read(await self._reply(call, arguments))
        except FAULTS as error:
            server = describe_server(self._client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error

    async def _reply(self, call: Call[T], arguments: tuple[str | int, ...]) -> object:
        if self._evalsha is not None:
            try:
                return await self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return await self._eval(call.script.text, *arguments)

    async def close(self) -> None: ...
