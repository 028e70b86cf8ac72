"""Runs a call on a blocking connection: send, read, reconnect.

``ConnectionRunner`` uses the sockets directly, which is faster. ``CommandRunner`` uses the client's
commands, for clusters and for mocks. Both send a script's text again when Redis no longer has it,
and both raise every failure as a LockError.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import redis
from redis.exceptions import NoScriptError

from syncguard.redis._transport.connections import (
    LARGE_POOL,
    Connection,
    Pool,
    describe_server,
    packer,
    release_if_in_use,
    shared,
    socket_of,
    take,
)
from syncguard.redis._transport.error_codes import FAULTS, NOT_SERVING, lock_error, not_serving
from syncguard.redis._transport.socket_polling import Poll, ReplySpin, poll_of
from syncguard.redis.script_calls import Call

T = TypeVar("T")

FRESH_FOR_S: Final = 1.0
"""A connection kept unused for longer than this is returned to the pool, which checks it."""

_pack: Final = packer()
_CONNECTION_FAILURES: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
_RECONNECT_AFTER: Final[tuple[type[Exception], ...]] = (*_CONNECTION_FAILURES, *NOT_SERVING)
"""After these errors the connection cannot be used again. A new one may work."""


class Runner(Protocol):
    """Runs calls, one round trip each."""

    def run(self, call: Call[T]) -> T: ...

    def close(self) -> None: ...


class ConnectionRunner:
    """Runs calls on connections of the client's own pool.

    At most one connection is kept between calls, because taking one from the pool costs more than
    the call. Threads that run at the same time take others from the pool. A forked child does not
    use the kept one.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keeps_one = pool.max_connections >= LARGE_POOL
        # Shared by all backends on this pool.
        self._spare: list[tuple[Connection, float]] = shared(pool, "spare", list)
        self._spin = shared(pool, "reply_spin", ReplySpin)
        self._server = describe_server(pool)
        # The poll object of the last kept socket: making one costs as much as using it.
        self._last_poll: tuple[socket.socket | None, Poll] = (None, lambda _ms: ())

    def run(self, call: Call[T]) -> T:
        # An interrupt is raised where a function starts or has ended. So a connection is stored in
        # a variable as soon as it is taken, and one call, not a function of ours, keeps it.
        connection: Connection | None = None
        clean, used_at = False, 0.0
        try:
            try:
                connection, poll = self._take(checked=call.if_resent is not None)
                reply, resent = self._exchange(connection, call, poll)
                clean, used_at = True, time.monotonic()
            except redis.ResponseError as error:
                clean = not isinstance(error, NOT_SERVING)  # the reply was read
                raise
            finally:
                if connection is not None:
                    if not clean:
                        # Possibly interrupted between sending and reading: the next call must not
                        # read the reply to this one. If disconnect is interrupted too, the
                        # connection is not used again.
                        connection.disconnect()
                    if self._keeps_one and not self._spare:
                        self._spare.append((connection, used_at))
                    else:
                        try:
                            self._pool.release(connection)
                        except BaseException:
                            release_if_in_use(self._pool, connection)
                            raise
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, server=self._server, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    def close(self) -> None:
        while self._spare:
            self._pool.release(self._spare.pop()[0])

    def _take(self, *, checked: bool) -> tuple[Connection, Poll | None]:
        """Take a connection; if it is the kept one, also return its poll function.

        ``checked``: never return a connection that the server has closed. Needed for calls whose
        result is uncertain when they are sent twice.
        """
        try:
            connection, kept_at = self._spare.pop()
        except IndexError:
            return take(self._pool), None
        try:
            # In a forked child the socket belongs to the parent. redis-py's pool resets itself too.
            ours = connection.pid == os.getpid()
            try:
                if ours and time.monotonic() - kept_at <= FRESH_FOR_S:
                    poll = self._poll_of(socket_of(connection))
                    # Nothing was sent, so if there is something to read, the server closed it.
                    if not (checked and poll(0)):
                        return connection, poll
            except redis.ConnectionError:
                pass
            if ours:
                self._pool.release(connection)
        except BaseException:
            release_if_in_use(self._pool, connection)
            raise
        return take(self._pool), None

    def _poll_of(self, sock: socket.socket) -> Poll:
        known, poll = self._last_poll
        if known is not sock:
            poll = poll_of(sock)
            self._last_poll = sock, poll
        return poll

    def _exchange(
        self, connection: Connection, call: Call[T], poll: Poll | None
    ) -> tuple[object, bool]:
        try:
            _send(connection, call)
            if poll is None:
                return _read(connection, call), False
            # Of several threads, only the one with the kept connection spins.
            sent_at = self._spin.spin(poll)
            reply = _read(connection, call)
            self._spin.record_reply(sent_at)
            return reply, False
        except _RECONNECT_AFTER as error:
            connection.disconnect()
            # A server that restarted has closed the kept connection; a server that became a replica
            # keeps all connections open. Neither shows that the current server is down, so make
            # one more attempt, even if the client's policy has no retries. A time-out does show
            # it. Sending twice is safe: every call is idempotent.
            timed_out = isinstance(error, redis.TimeoutError | TimeoutError)
            fresh_try = isinstance(error, NOT_SERVING) or (poll is not None and not timed_out)
            return self._retry(connection, call, error, counts=not fresh_try)

    def _retry(
        self, connection: Connection, call: Call[T], error: Exception, *, counts: bool
    ) -> tuple[object, bool]:
        """Retry as the client's policy defines; ``counts``: ``error`` counts as its first failure.

        Also returns whether Redis may have executed the call before.
        """
        failures = [error] if counts else []
        resent = not isinstance(error, NOT_SERVING)

        def attempt() -> object:
            if failures:
                raise failures.pop()
            _send(connection, call)
            return _read(connection, call)

        def clean_up(error: Exception) -> None:
            nonlocal resent
            resent = resent or not isinstance(error, NOT_SERVING)
            connection.disconnect()

        reply = connection.retry.call_with_retry(attempt, clean_up)
        return reply, resent


def _send(connection: Connection, call: Call[Any]) -> None:
    keys = call.keys
    command = ("EVALSHA", call.script.sha, str(len(keys)), *keys, *call.args)
    packed = [_pack(command)] if _pack else connection.pack_command(*command)
    connection.send_packed_command(packed)


def _read(connection: Connection, call: Call[Any]) -> object:
    try:
        try:
            return connection.read_response(disable_decoding=True)
        except NoScriptError:
            # After a restart or SCRIPT FLUSH: send the text, which also stores the script again.
            keys = call.keys
            connection.send_command("EVAL", call.script.text, str(len(keys)), *keys, *call.args)
            return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        raise not_serving(error) or error from None


class CommandRunner:
    """Runs calls through the client's ``evalsha`` or, where a mock has none, ``eval``."""

    def __init__(self, client: Any) -> None:
        self._eval: Callable[..., object] = client.eval
        self._evalsha: Callable[..., object] | None = getattr(client, "evalsha", None)
        self._client = client

    def run(self, call: Call[T]) -> T:
        arguments: tuple[str | int, ...] = (len(call.keys), *call.keys, *call.args)
        try:
            return call.read(self._reply(call, arguments))
        except FAULTS as error:
            server = describe_server(self._client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error

    def _reply(self, call: Call[T], arguments: tuple[str | int, ...]) -> object:
        if self._evalsha is not None:
            try:
                return self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return self._eval(call.script.text, *arguments)

    def close(self) -> None: ...
