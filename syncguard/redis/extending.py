"""Extending many locks on a connection of the heartbeat's own: pipelined, without retries.

Its own connection, because the pool's may be waiting for a reply; without retries, because the
heartbeat knows better how long it pays to try.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import redis
from redis.exceptions import NoScriptError

from syncguard.backend import Extension
from syncguard.errors import LockError
from syncguard.redis.calls import Call, Calls
from syncguard.redis.connections import (
    AsyncConnection,
    AsyncPool,
    Command,
    Connection,
    Pool,
    fileno,
    private_async_connection,
    private_connection,
)
from syncguard.redis.errors import lock_error
from syncguard.redis.scripts import EXTEND
from syncguard.types import ExtendResult


def _commands(calls: Sequence[Call[ExtendResult]], script_is_known: bool) -> list[Command]:
    """The calls on the wire. A script that Redis may not know goes in full with the first."""
    commands: list[Command] = [
        ("EVALSHA", EXTEND.sha, len(call.keys), *call.keys, *call.args) for call in calls
    ]
    if not script_is_known:
        commands[0] = ("EVAL", EXTEND.text, *commands[0][2:])
    return commands


def _answer(call: Call[ExtendResult], reply: object) -> ExtendResult | LockError:
    if isinstance(reply, Exception):
        return lock_error(reply, lock_id=call.lock_id)
    try:
        return call.read(reply)
    except LockError as error:
        return error


class RedisExtendChannel:
    """Sends extensions and collects the answers as they arrive; never waits for one."""

    def __init__(self, calls: Calls, connection: Connection) -> None:
        self._calls = calls
        self._connection = connection
        self._expected: deque[Call[ExtendResult]] = deque()
        self._script_is_known = False

    @classmethod
    def open(cls, calls: Calls, pool: Pool, timeout_ms: float) -> RedisExtendChannel:
        """Connect. This may block, up to the timeout."""
        connection = private_connection(pool, timeout_ms / 1000)
        try:
            connection.connect()
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, Exception):
                raise lock_error(error) from error
            raise
        return cls(calls, connection)

    def fileno(self) -> int:
        return fileno(self._connection)

    def send(self, extensions: Sequence[Extension]) -> None:
        calls = [self._calls.extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]
        try:
            commands = _commands(calls, self._script_is_known)
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            self._script_is_known = True
        except (redis.RedisError, OSError) as error:
            raise lock_error(error) from error
        self._expected.extend(calls)

    def receive(self) -> list[ExtendResult | LockError]:
        if not self._expected:
            # Something to read and nothing asked for: the server has closed the connection.
            raise LockError("ServiceUnavailable")
        answers: list[ExtendResult | LockError] = []
        try:
            while self._expected and self._connection.can_read(0):
                reply = self._read_one()
                answers.append(_answer(self._expected.popleft(), reply))
        except (redis.RedisError, OSError) as error:
            raise lock_error(error) from error
        return answers

    def _read_one(self) -> object:
        try:
            return self._connection.read_response(disable_decoding=True)
        except NoScriptError as error:
            self._script_is_known = False  # SCRIPT FLUSH: the heartbeat will try again
            return error
        except redis.ResponseError as error:
            return error

    def close(self) -> None:
        self._connection.disconnect()


class AsyncRedisExtendChannel:
    """Sends extensions and awaits the answers."""

    def __init__(self, calls: Calls, connection: AsyncConnection) -> None:
        self._calls = calls
        self._connection = connection
        self._script_is_known = False

    @classmethod
    async def open(
        cls, calls: Calls, pool: AsyncPool, timeout_ms: float
    ) -> AsyncRedisExtendChannel:
        connection = private_async_connection(pool, timeout_ms / 1000)
        try:
            await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, Exception):
                raise lock_error(error) from error
            raise
        return cls(calls, connection)

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        calls = [self._calls.extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]
        try:
            commands = _commands(calls, self._script_is_known)
            await self._connection.send_packed_command(self._connection.pack_commands(commands))
            replies = [await self._read_one() for _ in calls]
            self._script_is_known = not any(isinstance(r, NoScriptError) for r in replies)
        except (redis.RedisError, OSError) as error:
            raise lock_error(error) from error
        return [_answer(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _read_one(self) -> object:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)
