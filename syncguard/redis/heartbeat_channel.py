"""Extends many locks on a separate connection for the heartbeat: pipelined, without retries.

A separate connection, because all connections of the pool may be in use. Without retries, because
the heartbeat has its own retry schedule.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence

import redis
from redis.exceptions import NoScriptError

from syncguard._backend.optional import Extension
from syncguard.errors import LockError
from syncguard.redis._transport.connections import (
    AsyncConnection,
    AsyncPool,
    Command,
    Connection,
    Pool,
    describe_server,
    private_async_connection,
    private_connection,
    socket_of,
)
from syncguard.redis._transport.error_codes import FAULTS, lock_error, not_serving
from syncguard.redis._transport.reply_parser import ReplyParser
from syncguard.redis.script_calls import Call, Calls
from syncguard.redis.scripts import EXTEND
from syncguard.types import ExtendResult


def _commands(calls: Sequence[Call[ExtendResult]], script_is_known: bool) -> list[Command]:
    """The commands for the calls. If Redis may not have the script, the first contains its text."""
    commands: list[Command] = [
        ("EVALSHA", EXTEND.sha, str(len(call.keys)), *call.keys, *call.args) for call in calls
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


def _check_serves(replies: Sequence[object]) -> None:
    """Raise if the server cannot execute requests, so that the heartbeat reconnects.

    After a failover the new connection reaches the new primary. The heartbeat sends all extensions
    of this batch again there.
    """
    for reply in replies:
        error = not_serving(reply) if isinstance(reply, Exception) else None
        if error is not None:
            raise lock_error(error) from error


class RedisExtendChannel:
    """Sends extensions and reads the answers that have arrived. Only ``open`` may block."""

    def __init__(self, calls: Calls, connection: Connection) -> None:
        self._calls = calls
        self._connection = connection
        self._socket = socket_of(connection)
        self._socket.setblocking(False)
        self._unsent = bytearray()
        self.wants_to_write = False
        self._stream = ReplyParser()
        self._expected: deque[Call[ExtendResult]] = deque()
        self._script_is_known = False

    @classmethod
    def open(cls, calls: Calls, pool: Pool, timeout_ms: float) -> RedisExtendChannel:
        """Connect. This may block, up to the timeout."""
        connection = private_connection(pool, timeout_ms / 1000)
        try:
            connection.connect()
            return cls(calls, connection)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, FAULTS):
                raise lock_error(error, server=describe_server(pool)) from error
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, extensions: Sequence[Extension]) -> None:
        calls = [self._calls.extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]
        commands = _commands(calls, self._script_is_known)
        self._script_is_known = True
        for packed in self._connection.pack_commands(commands):
            self._unsent += packed
        self._expected.extend(calls)
        self._flush()

    def receive(self) -> list[ExtendResult | LockError]:
        if not self._expected:
            # Readable, but no request is pending: the server has closed the connection.
            raise LockError("ServiceUnavailable")
        self._flush()
        try:
            replies = self._stream.feed(self._arrived())
        except FAULTS as error:
            raise lock_error(error) from error
        _check_serves(replies)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            self._script_is_known = False  # after SCRIPT FLUSH; the heartbeat will retry
        return [_answer(self._expected.popleft(), reply) for reply in replies]

    def close(self) -> None:
        self._connection.disconnect()

    def close_if_idle(self) -> None:
        """Shut the connection down, from any thread, unless a reply is pending.

        The heartbeat detects this and closes it; if a lock still needs one, it opens another.
        In a forked child this does nothing, because the connection belongs to the parent.
        """
        if not self._expected and self._connection.pid == os.getpid():
            with contextlib.suppress(OSError):  # closed already
                self._socket.shutdown(socket.SHUT_RDWR)

    def _flush(self) -> None:
        """Send as much as the kernel accepts. The rest is sent when the socket is writable."""
        self.wants_to_write = False
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantWriteError):
            self.wants_to_write = True
        except ssl.SSLWantReadError:
            pass  # TLS has to read first; the rest is sent after that
        except OSError as error:
            raise lock_error(error) from error

    def _arrived(self) -> bytes:
        arrived = bytearray()
        try:
            # Read until nothing is left: TLS may buffer data that the selector cannot detect.
            while data := self._socket.recv(65_536):
                arrived += data
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return bytes(arrived)
        raise redis.ConnectionError("the server closed the connection")


class AsyncRedisExtendChannel:
    """Sends extensions and awaits the answers."""

    def __init__(self, calls: Calls, connection: AsyncConnection) -> None:
        self._calls = calls
        self._connection = connection
        self._script_is_known = False
        self._is_busy = False

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
                raise lock_error(error, server=describe_server(pool)) from error
            raise
        return cls(calls, connection)

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        calls = [self._calls.extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]
        self._is_busy = True
        try:
            commands = _commands(calls, self._script_is_known)
            await self._connection.send_packed_command(self._connection.pack_commands(commands))
            replies = [await self._read_one() for _ in calls]
            self._script_is_known = not any(isinstance(r, NoScriptError) for r in replies)
        except (redis.RedisError, OSError) as error:
            raise lock_error(error) from error
        finally:
            self._is_busy = False
        _check_serves(replies)
        return [_answer(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _read_one(self) -> object:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def close_if_idle(self) -> None:
        """Close the connection unless a reply is pending.

        If a lock still needs it, redis-py connects again when the next extension is sent.
        """
        if not self._is_busy:
            with contextlib.suppress(OSError, RuntimeError):  # its event loop may be closed
                await self.close()
