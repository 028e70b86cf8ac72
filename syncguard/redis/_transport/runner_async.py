"""Running a call on an asyncio connection: the twin of ``runner``, with the same calls.

A call that was cancelled half-way closes its connection (redis-py does), so that no later call
reads its reply. Whether the server carried it out is for the caller to settle.
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
    is_closed,
    place_of,
    shared,
    take_async,
)
from syncguard.redis._transport.error_codes import FAULTS, NOT_SERVING, lock_error, not_serving
from syncguard.redis._transport.runner import FRESH_FOR_S
from syncguard.redis.calls import Call

T = TypeVar("T")

_LOST = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.TimeoutError)
_ELSEWHERE: tuple[type[Exception], ...] = (*_LOST, *NOT_SERVING)


class AsyncRunner(Protocol):
    """Runs calls, one round trip each."""

    async def run(self, call: Call[T]) -> T: ...

    async def close(self) -> None: ...


class AsyncConnectionRunner:
    """Runs calls on connections of the client's own pool, keeping one at most between calls."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._keeps = pool.max_connections >= LARGE_POOL
        # One for the pool, not one for each backend on it.
        self._spare: list[tuple[AsyncConnection, float]] = shared(pool, "spare", list)
        self._place = place_of(pool)

    async def run(self, call: Call[T]) -> T:
        try:
            connection, reused = await self._take(checked=call.if_resent is not None)
            try:
                reply, resent = await self._exchange(connection, call, reused)
            except BaseException as error:
                # Interrupted, perhaps between sending and reading: the next call must not find
                # the reply to this one.
                if not isinstance(error, redis.ResponseError) or isinstance(error, NOT_SERVING):
                    await connection.disconnect(nowait=True)
                raise
            finally:
                await self._give(connection)
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, place=self._place, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    async def close(self) -> None:
        while self._spare:
            await self._pool.release(self._spare.pop()[0])

    async def _take(self, *, checked: bool) -> tuple[AsyncConnection, bool]:
        if self._spare:
            connection, given_at = self._spare.pop()
            fresh = time.monotonic() - given_at <= FRESH_FOR_S
            # As in Wire: what cannot be sent twice without a doubt takes a connection that lives.
            if fresh and not checked:
                return connection, True
            try:
                closed = await is_closed(connection)
            except BaseException:
                # Cancelled: nothing was asked of it, so it is what it was. Without an await, which
                # a second cancellation could interrupt; so for a moment there may be two.
                self._spare.append((connection, given_at))
                raise
            if closed:
                # Here, because redis-py's pool need not notice, and would hand it out as it is.
                await connection.disconnect(nowait=True)
            elif fresh:
                return connection, True
            await self._pool.release(connection)
        return await take_async(self._pool), False

    async def _give(self, connection: AsyncConnection) -> None:
        if self._keeps and not self._spare:
            self._spare.append((connection, time.monotonic()))
        else:
            await self._pool.release(connection)

    async def _exchange(
        self, connection: AsyncConnection, call: Call[T], reused: bool
    ) -> tuple[object, bool]:
        try:
            return await _send_and_read(connection, call), False
        except _ELSEWHERE as error:
            await connection.disconnect(nowait=True)
            # As in Wire: the server that is there now need not be the one we were connected to.
            timed_out = isinstance(error, redis.TimeoutError | TimeoutError | asyncio.TimeoutError)
            fresh_try = isinstance(error, NOT_SERVING) or (reused and not timed_out)
            return await self._again(connection, call, error, counts=not fresh_try)

    async def _again(
        self, connection: AsyncConnection, call: Call[T], error: Exception, *, counts: bool
    ) -> tuple[object, bool]:
        """As in Wire: go on as the client's retry policy says."""
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
            place = place_of(self._client)
            raise lock_error(error, place=place, key=call.key, lock_id=call.lock_id) from error

    async def _reply(self, call: Call[T], arguments: tuple[str | int, ...]) -> object:
        if self._evalsha is not None:
            try:
                return await self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return await self._eval(call.script.text, *arguments)

    async def close(self) -> None: ...
