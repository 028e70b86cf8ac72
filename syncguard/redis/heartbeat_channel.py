"""Extends many locks on a separate connection for the heartbeat: pipelined, without retries.

A separate connection, because all connections of the pool may be in use. Without retries, because
the heartbeat has its own retry schedule. One script call extends up to 32 locks: what a call costs,
on both sides, is spent once for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence

import redis
from redis.exceptions import NoScriptError

from syncguard._backend.optional import Extension, LockMoved
from syncguard._lock.background_tasks import keep
from syncguard.errors import ErrorContext, LockError
from syncguard.redis._transport.connections import (
    AsyncConnection,
    AsyncPool,
    Connection,
    Pool,
    describe_server,
    private_async_connection,
    private_connection,
    socket_of,
)
from syncguard.redis._transport.error_codes import (
    FAULTS,
    is_redirection,
    lock_error,
    not_serving,
)
from syncguard.redis._transport.reply_parser import reply_reader
from syncguard.redis._transport.request_packing import pack
from syncguard.redis.replica_acknowledgement import ReplicaAcknowledgement
from syncguard.redis.script_calls import MAX_EXTENDED_TOGETHER, Calls
from syncguard.redis.scripts import EXTEND
from syncguard.types import ExtendResult


class _Pending:
    """One extension, and its answer once there is one."""

    __slots__ = ("answer", "extension", "unconfirmed")

    def __init__(self, extension: Extension) -> None:
        self.extension = extension
        self.answer: ExtendResult | LockError | None = None
        self.unconfirmed: ExtendResult | LockError | None = None
        """The answer before replicas have confirmed it, if they have to."""


class _Batch:
    """Extensions that one script call makes."""

    __slots__ = ("call", "pending")

    def __init__(self, calls: Calls, pending: Sequence[_Pending]) -> None:
        self.pending = pending
        self.call = calls.extend_together([each.extension for each in pending])


class _Wait:
    """A WAIT after the batches of these extensions."""

    __slots__ = ("_acknowledgement", "_pending")

    def __init__(
        self, acknowledgement: ReplicaAcknowledgement, pending: Sequence[_Pending]
    ) -> None:
        shortest_ms = min(each.extension[1] for each in pending)
        self._acknowledgement = acknowledgement.for_heartbeat(shortest_ms)
        self._pending = pending

    def packed(self) -> bytes:
        return pack(self._acknowledgement.wait)

    def answer(self, confirmed: object) -> None:
        """Answer the extensions. One that too few replicas have is answered with an error."""
        for each in self._pending:
            if each.unconfirmed is None:
                continue  # it is sent again
            lock_id = each.extension[0]
            each.answer = each.unconfirmed
            try:
                context = ErrorContext(lock_id=lock_id)
                self._acknowledgement.check(each.unconfirmed, confirmed, context)
            except LockError as error:
                each.answer = error
            except FAULTS as error:
                each.answer = lock_error(error, lock_id=lock_id)


class _Batches:
    """Makes batches, and decides by the replies what is answered and what is sent again. No I/O."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._script_is_known = False

    def of(self, pending: Sequence[_Pending]) -> list[_Batch]:
        """Few batches: up to 32 locks in each, and on a cluster the locks of one bucket."""
        groups: dict[str, list[_Pending]] = {}
        for each in pending:
            bucket = self._calls.names.bucket_of(each.extension[0])
            groups.setdefault(bucket, []).append(each)
        return [
            _Batch(self._calls, group[start : start + MAX_EXTENDED_TOGETHER])
            for group in groups.values()
            for start in range(0, len(group), MAX_EXTENDED_TOGETHER)
        ]

    def packed(self, batches: Sequence[_Batch]) -> list[bytes]:
        """The requests. If Redis may not have the script, the first contains its text."""
        requests: list[bytes] = []
        for batch in batches:
            keys, args = batch.call.keys, batch.call.args
            script = ("EVALSHA", EXTEND.sha) if self._script_is_known else ("EVAL", EXTEND.text)
            self._script_is_known = True
            requests.append(pack((*script, str(len(keys)), *keys, *args)))
        return requests

    def answer(self, batch: _Batch, reply: object) -> list[_Batch]:
        """Store the answers of a batch, or return the batches to send in its place.

        If the server cannot execute requests, raise, so that the heartbeat reconnects: after a
        failover the new connection reaches the new primary.
        """
        if isinstance(reply, NoScriptError):  # after SCRIPT FLUSH
            self._script_is_known = False
            return [batch]
        if isinstance(reply, Exception):
            error = not_serving(reply)
            if error is not None:
                raise lock_error(error) from error
            if is_redirection(reply):
                for each in batch.pending:
                    each.answer = LockMoved(context=ErrorContext(lock_id=each.extension[0]))
                return []
            if len(batch.pending) > 1:
                # One unreadable record must not fail the extension of the others.
                return [_Batch(self._calls, [each]) for each in batch.pending]
        for each, answer in zip(batch.pending, _answers(batch, reply), strict=True):
            if self._calls.acknowledgement is None:
                each.answer = answer
            else:
                each.unconfirmed = answer
        return []

    def wait_after(self, batches: Sequence[_Batch]) -> _Wait | None:
        """The WAIT to send after the batches, if replicas have to confirm them."""
        if self._calls.acknowledgement is None:
            return None
        pending = [each for batch in batches for each in batch.pending]
        return _Wait(self._calls.acknowledgement, pending)


def _answers(batch: _Batch, reply: object) -> Sequence[ExtendResult | LockError]:
    if isinstance(reply, Exception):
        return [lock_error(reply, lock_id=each.extension[0]) for each in batch.pending]
    try:
        return batch.call.read(reply)
    except LockError as error:
        return [error] * len(batch.pending)


class RedisExtendChannel:
    """Sends extensions and reads the answers that have arrived. Only ``open`` may block."""

    def __init__(self, calls: Calls, connection: Connection) -> None:
        self._batches = _Batches(calls)
        self._connection = connection
        self._socket = socket_of(connection)
        self._socket.setblocking(False)
        self._unsent = bytearray()
        self.wants_to_write = False
        self._replies = reply_reader()
        self._expected: deque[_Batch | _Wait] = deque()
        """In the order of the replies. A batch that is sent again moves to the end."""
        self._unanswered: deque[_Pending] = deque()
        """In the order of ``send``, which is the order of the answers."""
        self._waits = False
        """Whether a WAIT has no reply yet. It blocks the connection: further batches are kept."""
        self._kept: list[_Batch] = []

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
        pending = [_Pending(extension) for extension in extensions]
        batches = self._batches.of(pending)
        self._unanswered.extend(pending)
        self._send(batches)

    def receive(self) -> list[ExtendResult | LockError]:
        if not self._expected:
            # Readable, but no request is pending: the server has closed the connection.
            raise LockError("ServiceUnavailable")
        self._flush()
        try:
            replies = self._replies.feed(self._arrived())
        except FAULTS as error:
            raise lock_error(error) from error
        again: list[_Batch] = []
        for reply in replies:
            sent = self._expected.popleft()
            if isinstance(sent, _Wait):
                sent.answer(reply)
                self._waits = False
            else:
                again += self._batches.answer(sent, reply)
        if not self._waits:
            again, self._kept = [*again, *self._kept], []
        if again:
            self._send(again)
        return self._take_answers()

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

    def _send(self, batches: Sequence[_Batch]) -> None:
        if self._waits:
            self._kept.extend(batches)
            return
        for request in self._batches.packed(batches):
            self._unsent += request
        self._expected.extend(batches)
        wait = self._batches.wait_after(batches)
        if wait is not None:
            self._unsent += wait.packed()
            self._expected.append(wait)
            self._waits = True
        self._flush()

    def _take_answers(self) -> list[ExtendResult | LockError]:
        """The answers up to the first extension that has none yet."""
        answers: list[ExtendResult | LockError] = []
        while self._unanswered and (answer := self._unanswered[0].answer) is not None:
            self._unanswered.popleft()
            answers.append(answer)
        return answers

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
        self._batches = _Batches(calls)
        self._connection = connection
        self._is_busy = False
        self._loop = asyncio.get_running_loop()

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
        pending = [_Pending(extension) for extension in extensions]
        batches = self._batches.of(pending)
        wait = self._batches.wait_after(batches)
        self._is_busy = True
        try:
            while batches:
                batches = await self._exchange(batches)
            if wait is not None:
                await self._confirm(wait)
        except (redis.RedisError, OSError) as error:
            raise lock_error(error) from error
        finally:
            self._is_busy = False
        return [each.answer for each in pending if each.answer is not None]

    async def _exchange(self, batches: Sequence[_Batch]) -> list[_Batch]:
        """Send the batches and read their replies. Returns those to send again."""
        await self._connection.send_packed_command(self._batches.packed(batches))
        replies = [await self._read_one() for _ in batches]
        again: list[_Batch] = []
        for batch, reply in zip(batches, replies, strict=True):
            again += self._batches.answer(batch, reply)
        return again

    async def _confirm(self, wait: _Wait) -> None:
        if not self._connection.is_connected:  # redis-py would connect, and WAIT confirm nothing
            raise redis.ConnectionError("the connection was closed")
        await self._connection.send_packed_command([wait.packed()])
        wait.answer(await self._read_one())

    async def _read_one(self) -> object:
        try:
            return await self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def close_if_idle(self) -> None:
        """Close the connection unless a reply is pending. May be called on any event loop.

        If a lock still needs it, redis-py connects again when the next extension is sent.
        """
        if self._is_busy:
            return
        with contextlib.suppress(OSError, RuntimeError):  # its event loop may be closed
            if self._loop is asyncio.get_running_loop():
                await self.close()
            else:
                self._loop.call_soon_threadsafe(self._close_on_its_loop)

    def _close_on_its_loop(self) -> None:
        if not self._is_busy:
            keep(self._loop.create_task(self.close()))
