"""One connection for all short calls of an event loop: requests out, replies in, in order.

A call adds an entry to a queue and awaits its future: no task and no connection for a call. What is
called in one turn of the loop is written together; a single call is written at once. A caller that
is cancelled, or whose deadline has passed, leaves: its entry stays, and its reply is dropped.

After a lost connection the entries without a reply are sent again on the next one, in their order,
as often as ADR-014 and the client's retry policy allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import select
from collections import deque
from typing import Any, Final, Generic, TypeVar

import redis
from redis.exceptions import NoScriptError

from syncguard._backend.deadline import Deadline
from syncguard.errors import Aborted, LockError, NetworkTimeout
from syncguard.redis._transport.connections import (
    AsyncConnection,
    AsyncPool,
    RetryPolicy,
    adopt_transport,
    drop_transport,
    pipelined_connection,
    pool_retry_policy,
    register,
    unregister,
)
from syncguard.redis._transport.error_codes import FAULTS, NOT_SERVING, not_serving
from syncguard.redis._transport.reply_parser import Replies, reply_reader
from syncguard.redis._transport.request_packing import pack
from syncguard.redis.script_calls import Call

T = TypeVar("T")

MAX_QUEUED: Final = 10_000
"""More calls than this at once are refused with RateLimited."""


_TURNS_TO_NOTICE: Final = 8
"""The loop needs a few turns from the end of a connection to telling us."""


class Entry(Generic[T]):
    """One call in the queue."""

    __slots__ = (
        "call",
        "failures",
        "future",
        "had_fresh_try",
        "limit",
        "resent",
        "sent_at",
        "with_text",
    )

    def __init__(self, call: Call[T], future: asyncio.Future[object]) -> None:
        self.call = call
        self.future = future
        self.with_text = False
        """Send the text of the script, which Redis does not have."""
        self.limit: asyncio.TimerHandle | None = None
        """Ends the wait of the caller, not the request."""
        self.sent_at = 0.0
        self.had_fresh_try = False
        self.failures = 0
        self.resent = False
        """Redis may have executed an earlier sending."""

    def packed(self) -> bytes:
        call, keys = self.call, self.call.keys
        if self.with_text:
            return pack(("EVAL", call.script.text, str(len(keys)), *keys, *call.args))
        return pack(("EVALSHA", call.script.sha, str(len(keys)), *keys, *call.args))


class Wire(asyncio.Protocol):
    """Receives what one transport brings, until the connection is replaced."""

    def __init__(self, owner: PipelinedConnection, streams: asyncio.BaseProtocol) -> None:
        self.owner: PipelinedConnection | None = owner
        self._streams = streams

    def data_received(self, data: bytes) -> None:
        if self.owner is not None:
            self.owner.receive(data)

    def pause_writing(self) -> None:
        if self.owner is not None:
            self.owner.pause_writing()

    def resume_writing(self) -> None:
        if self.owner is not None:
            self.owner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._streams.connection_lost(error)  # redis-py may wait for it
        if self.owner is not None:
            self.owner.lose(error or redis.ConnectionError("the server closed the connection"))


class PipelinedConnection:
    """The connection of one event loop to the server of one pool. Connects when it is needed."""

    def __init__(self, pool: AsyncPool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._pid = os.getpid()
        self._policy: RetryPolicy = pool_retry_policy(pool)
        timeout = pool.connection_kwargs.get("socket_timeout")
        self._timeout_s: float | None = None if timeout is None else float(timeout)
        self._connection: AsyncConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None
        self._replies: Replies = reply_reader()
        self._queued: deque[Entry[Any]] = deque()
        """Not written yet."""
        self._sent: deque[Entry[Any]] = deque()
        """Written; their replies arrive in this order."""
        self._paused = False
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def is_usable(self) -> bool:
        """False in a forked child: the connection belongs to the parent."""
        return self._pid == os.getpid()

    async def run(self, call: Call[T], deadline: Deadline | None) -> tuple[object, bool]:
        """Return the reply, and whether Redis may have executed the call before."""
        if deadline is not None:
            deadline.left_s()
        if len(self._queued) + len(self._sent) >= MAX_QUEUED:
            raise LockError("RateLimited", "too many calls wait for the connection to Redis")
        if call.if_resent is not None and self._may_be_closed():
            await self._notice_end()
        entry = Entry(call, self._loop.create_future())
        self._add(entry)
        if deadline is None:
            return await entry.future, entry.resent
        self._check(entry, deadline)
        try:
            return await entry.future, entry.resent
        finally:
            if entry.limit is not None:
                entry.limit.cancel()

    def _check(self, entry: Entry[Any], deadline: Deadline) -> None:
        """End the wait of a caller whose time is over, or whose signal is set."""
        if entry.future.done():
            return
        try:
            left_s = deadline.slice_s()
        except NetworkTimeout:
            entry.future.set_exception(redis.TimeoutError("the deadline of the call has passed"))
        except Aborted as error:
            entry.future.set_exception(error)
        else:
            entry.limit = self._loop.call_later(left_s, self._check, entry, deadline)

    def _may_be_closed(self) -> bool:
        """Whether there is something to read although no reply is expected."""
        transport = self._transport
        if transport is None or self._sent:
            return False
        sock = transport.get_extra_info("socket")
        return sock is not None and bool(select.select([sock.fileno()], [], [], 0)[0])

    async def _notice_end(self) -> None:
        """Let the loop notice that the server has closed the connection, before we use it."""
        transport = self._transport
        for _ in range(_TURNS_TO_NOTICE):
            if self._transport is not transport:
                return
            await asyncio.sleep(0)

    # -- out ----------------------------------------------------------------------------------

    def _add(self, entry: Entry[Any]) -> None:
        transport = self._transport
        if transport is None:
            self._queued.append(entry)
            self._connect_soon()
        elif not (self._sent or self._queued or self._paused):
            self._write([entry])
        else:
            self._queued.append(entry)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._transport is not None and not self._paused and self._queued:
            entries, self._queued = list(self._queued), deque()
            self._write(entries)

    def _write(self, entries: list[Entry[Any]]) -> None:
        assert self._transport is not None
        now = self._loop.time()
        packed: list[bytes] = []
        for entry in entries:
            if entry.future.done():
                continue  # nobody waits for it
            entry.sent_at = now
            packed.append(entry.packed())
            entry.call.may_be_sent = True
            self._sent.append(entry)
        if packed:
            self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
            self._start_timer()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    # -- in -----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        try:
            replies = self._replies.feed(data)
        except redis.RedisError as error:
            self.lose(error)
            return
        for reply in replies:
            if not self._sent:
                self.lose(redis.ConnectionError("a reply without a request"))
                return
            entry = self._sent.popleft()
            if not isinstance(reply, redis.ResponseError):
                self._answer(entry, reply)
            elif not self._answer_error(entry, reply):
                return

    def _answer(self, entry: Entry[Any], reply: object) -> None:
        if not entry.future.done():
            entry.future.set_result(reply)

    def _answer_error(self, entry: Entry[Any], reply: redis.ResponseError) -> bool:
        """Handle an error reply. False: the connection was replaced."""
        if isinstance(reply, NoScriptError) and not entry.with_text:
            entry.with_text = True
            if not entry.future.done():
                self._queued.appendleft(entry)
                self._flush_soon()
            return True
        error: redis.RedisError = not_serving(reply) or reply
        logged_out = str(reply).startswith("NOAUTH")
        if isinstance(error, NOT_SERVING) or logged_out:
            self._sent.appendleft(entry)
            self.lose(error, executed=False)
            return False
        if not entry.future.done():
            entry.future.set_exception(error)
        return True

    # -- time-outs ----------------------------------------------------------------------------

    def _start_timer(self) -> None:
        """One timer for the oldest request. It is not cancelled by the reply: it finds that out."""
        if self._timer is None and self._timeout_s is not None and self._sent:
            due = self._sent[0].sent_at + self._timeout_s
            self._timer = self._loop.call_at(due, self._check_oldest)

    def _check_oldest(self) -> None:
        self._timer = None
        if not self._sent or self._timeout_s is None:
            return
        if self._loop.time() - self._sent[0].sent_at >= self._timeout_s:
            self.lose(redis.TimeoutError("no reply within the socket_timeout"))
        else:
            self._start_timer()

    # -- connecting, and losing the connection ------------------------------------------------

    def lose(self, error: Exception, *, executed: bool = True) -> None:
        """Close the connection. Send the entries again where that is allowed; fail the others."""
        self._disconnect()
        again: list[Entry[Any]] = []
        timed_out = isinstance(error, redis.TimeoutError)
        for number, entry in enumerate(self._sent):
            # An error reply is the answer to the first entry only.
            refused = not executed and number == 0
            if entry.future.done():
                continue
            entry.resent = entry.resent or not refused
            # One more try does not count: this connection may lead to a server that has gone.
            fresh_try = not (entry.had_fresh_try or timed_out)
            entry.had_fresh_try = True
            if not fresh_try:
                entry.failures += 1
            if not fresh_try and not self._may_retry(entry.failures, error):
                entry.future.set_exception(_as_fault(error))
            else:
                again.append(entry)
        self._sent.clear()
        self._queued.extendleft(reversed(again))
        if self._queued:
            self._connect_soon(self._pause_s(again))

    def _may_retry(self, failures: int, error: Exception) -> bool:
        policy = self._policy
        return isinstance(_as_fault(error), policy.errors) and not 0 <= policy.retries < failures

    def _pause_s(self, again: list[Entry[Any]]) -> float:
        failures = max((entry.failures for entry in again), default=0)
        return self._policy.pause_s(failures) if failures else 0.0

    def _connect_soon(self, pause_s: float = 0.0) -> None:
        if self._connecting is None:
            # In an empty context: the task must not keep the context of the first caller.
            self._connecting = contextvars.Context().run(
                self._loop.create_task, self._connect(pause_s)
            )
            self._connecting.add_done_callback(self._connected)

    async def _connect(self, pause_s: float) -> None:
        failures = 0
        while True:
            await asyncio.sleep(pause_s)
            connection = pipelined_connection(self._pool)
            try:
                await connection.connect()
                self._connection = connection
                register(self._pool, connection)
                self._replies = reply_reader()
                self._paused = False
                self._transport, self._wire, early = adopt_transport(
                    connection, lambda streams: Wire(self, streams)
                )
                if early:
                    self.receive(early)
            except BaseException as error:
                self._connection = self._transport = None
                unregister(self._pool, connection)
                await connection.disconnect(nowait=True)
                failures += 1
                if not isinstance(error, FAULTS) or not self._may_retry(failures, error):
                    raise
                pause_s = self._policy.pause_s(failures)
            else:
                return

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if task.cancelled():
            # By the end of the loop, which cancels all tasks. Whoever still waits needs it.
            if any(not entry.future.done() for entry in self._queued):
                self._connect_soon()
            return
        error = task.exception()
        if error is None:
            self._flush()
            return
        entries, self._queued = self._queued, deque()
        for entry in entries:
            if not entry.future.done():
                entry.future.set_exception(error)

    def _disconnect(self) -> None:
        transport, self._transport = self._transport, None
        connection, self._connection = self._connection, None
        if self._wire is not None:
            self._wire.owner = None
            self._wire = None
        if transport is not None:
            with contextlib.suppress(RuntimeError):
                transport.abort()
        if connection is not None:
            unregister(self._pool, connection)
            drop_transport(connection, transport, self._loop.is_closed())

    def close(self) -> None:
        """Close the connection. Calls that wait for a reply fail."""
        if self._connecting is not None and not self._loop.is_closed():
            self._connecting.cancel()
        self._disconnect()
        error = redis.ConnectionError("the backend was closed")
        for entry in (*self._sent, *self._queued):
            if not entry.future.done() and not self._loop.is_closed():
                entry.future.set_exception(error)
        self._sent.clear()
        self._queued.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _as_fault(error: Exception) -> Exception:
    return error if isinstance(error, redis.RedisError) else redis.ConnectionError(str(error))
