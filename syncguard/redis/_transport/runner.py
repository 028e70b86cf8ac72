"""Runs a call on a blocking connection: send, read, reconnect.

``ConnectionRunner`` uses the sockets directly, which is faster. ``CommandRunner`` uses the client's
commands, for mocks. Both send a script's text again when Redis no longer has it, and both raise
every failure as a LockError. ``cluster_runner`` has the one for clusters.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import redis
from redis.exceptions import NoScriptError

from syncguard._backend.deadline import Deadline
from syncguard._lock.sleeping_waiter import sleep
from syncguard.clock import monotonic_ms
from syncguard.redis._transport.bounded_connection import (
    bind,
    ends_in_time,
    is_bound,
    unbind,
)
from syncguard.redis._transport.connections import (
    LARGE_POOL,
    Connection,
    Pool,
    describe_server,
    private_connection,
    release_if_in_use,
    retry_policy,
    shared,
    socket_of,
    take,
    take_to_connect,
)
from syncguard.redis._transport.error_codes import (
    FAULTS,
    NOT_SERVING,
    lock_error,
    not_serving,
)
from syncguard.redis._transport.request_packing import pack
from syncguard.redis._transport.socket_polling import Poll, ReplySpin, poll_of
from syncguard.redis.script_calls import Call

T = TypeVar("T")

FRESH_FOR_S: Final = 1.0
"""A connection kept unused for longer than this is returned to the pool, which checks it."""

POOL_WAIT_S: Final = 0.05
"""How long a call with a deadline waits for a connection of an exhausted pool that waits.

Then it opens one of its own: whoever has the connections may need this lock to go on.
"""

CONNECTION_FAILURES: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
_RECONNECT_AFTER: Final[tuple[type[Exception], ...]] = (*CONNECTION_FAILURES, *NOT_SERVING)
"""After these errors the connection cannot be used again. A new one may work."""


class Runner(Protocol):
    """Runs calls, one round trip each. With a deadline, only as long as it allows."""

    def run(self, call: Call[T], deadline: Deadline | None = None) -> T: ...

    def close(self) -> None: ...


class ConnectionRunner:
    """Runs calls on connections of the client's own pool.

    At most one connection is kept between calls, because taking one from the pool costs more than
    the call. Threads that run at the same time take others from the pool. A forked child does not
    use the kept one.
    """

    def __init__(self, pool: Pool, *, keeps_one: bool = True) -> None:
        self._pool = pool
        self._keeps_one = keeps_one and pool.max_connections >= LARGE_POOL
        self._is_closed = False
        # Shared by all backends on this pool.
        self._spare: list[tuple[Connection, float]] = shared(pool, "spare", list)
        self._spin = shared(pool, "reply_spin", ReplySpin)
        self._server = describe_server(pool)
        # The poll object of the last kept socket: making one costs as much as using it.
        self._last_poll: tuple[socket.socket | None, Poll] = (None, lambda _ms: ())

    def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        # An interrupt is raised where a function starts or has ended. So a connection is stored in
        # a variable as soon as it is taken, and one call, not a function of ours, keeps it.
        connection: Connection | None = None
        clean, used_at, pooled = False, 0.0, True
        own_class: type[Connection] | None = None
        try:
            try:
                connection, poll, pooled = self._take(
                    checked=call.if_resent is not None, deadline=deadline
                )
                if deadline is not None:
                    own_class = type(connection)
                    # One request and one reply on a kept connection mostly need no other time-out
                    # than their own; connecting, and the WAIT after a request, do.
                    if poll is None or call.wait or not ends_in_time(connection, deadline):
                        bind(connection, deadline)
                reply, resent = self._exchange(connection, call, poll, deadline)
                if own_class is not None and type(connection) is not own_class:
                    unbind(connection, own_class)
                clean, used_at = True, time.monotonic()
            except redis.ResponseError as error:
                if own_class is not None and connection is not None and is_bound(connection):
                    unbind(connection, own_class)
                clean = not isinstance(error, NOT_SERVING)  # the reply was read
                raise
            finally:
                if connection is not None:
                    if own_class is not None:
                        connection.__class__ = own_class  # in case unbind did not run
                    if not clean or not pooled or self._is_closed:
                        # Possibly interrupted between sending and reading: the next call must not
                        # read the reply to this one. If disconnect is interrupted too, the
                        # connection is not used again.
                        connection.disconnect()
                    if not pooled:
                        pass
                    elif self._keeps_one and not self._spare and not self._is_closed:
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
        # A call that still runs, such as a release in the background, may have to connect again.
        # Nobody would close its connection.
        self._is_closed = True
        while self._spare:
            self._pool.release(self._spare.pop()[0])

    def _take(
        self, *, checked: bool, deadline: Deadline | None
    ) -> tuple[Connection, Poll | None, bool]:
        """Take a connection; if it is the kept one, also return its poll function.

        The last value is False for a connection that does not belong to the pool.

        ``checked``: never return a connection that the server has closed. Needed for calls whose
        result is uncertain when they are sent twice.
        """
        if deadline is not None:
            deadline.left_s()
        try:
            connection, kept_at = self._spare.pop()
        except IndexError:
            return self._take_from_pool(deadline)
        try:
            # In a forked child the socket belongs to the parent. redis-py's pool resets itself too.
            ours = connection.pid == os.getpid()
            try:
                if ours and time.monotonic() - kept_at <= FRESH_FOR_S:
                    poll = self._poll_of(socket_of(connection))
                    # Nothing was sent, so if there is something to read, the server closed it.
                    if not (checked and poll(0)):
                        return connection, poll, True
            except redis.ConnectionError:
                pass
            if ours:
                self._pool.release(connection)
        except BaseException:
            release_if_in_use(self._pool, connection)
            raise
        return self._take_from_pool(deadline)

    def _take_from_pool(self, deadline: Deadline | None) -> tuple[Connection, Poll | None, bool]:
        if deadline is None:
            return take(self._pool), None, True
        connection = take_to_connect(self._pool, min(POOL_WAIT_S, deadline.left_s()))
        if connection is not None:
            return connection, None, True
        return private_connection(self._pool, deadline.left_s()), None, False

    def _poll_of(self, sock: socket.socket) -> Poll:
        known, poll = self._last_poll
        if known is not sock:
            poll = poll_of(sock)
            self._last_poll = sock, poll
        return poll

    def _exchange(
        self, connection: Connection, call: Call[T], poll: Poll | None, deadline: Deadline | None
    ) -> tuple[object, bool]:
        try:
            if poll is None:
                connection.connect()  # before the call counts as sent
                _send(connection, call)
                return _read(connection, call), False
            _send(connection, call)
            if call.wait is not None:  # its reply takes as long as the replicas take
                return _read(connection, call), False
            # Of several threads, only the one with the kept connection spins.
            sent_at = self._spin.spin(poll)
            if not (deadline is None or is_bound(connection) or ends_in_time(connection, deadline)):
                bind(connection, deadline)
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
            if deadline is not None:
                if not is_bound(connection):
                    bind(connection, deadline)
                return self._retry_until(connection, call, error, deadline, counts=not fresh_try)
            return self._retry(connection, call, error, counts=not fresh_try)

    def _retry_until(
        self,
        connection: Connection,
        call: Call[T],
        error: Exception,
        deadline: Deadline,
        *,
        counts: bool,
    ) -> tuple[object, bool]:
        """As ``_retry``, as often and with the same pauses, but only until the deadline.

        If the deadline would pass during a pause, the error is raised at once.
        """
        policy = retry_policy(connection)
        failures = 1 if counts else 0
        resent = not isinstance(error, NOT_SERVING)
        while True:
            if failures:
                used_up = 0 <= policy.retries < failures
                if used_up or not isinstance(error, policy.errors):
                    raise error
                pause_ms = policy.pause_s(failures) * 1000
                if monotonic_ms() + pause_ms >= deadline.at_ms:
                    raise error
                sleep(pause_ms, deadline.signal)
            try:
                _send(connection, call)
                return _read(connection, call), resent
            except _RECONNECT_AFTER as next_error:
                connection.disconnect()
                error = next_error
                failures += 1
                resent = resent or not isinstance(error, NOT_SERVING)

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


def packed(call: Call[Any], *, with_text: bool = False) -> list[bytes]:
    """The request, and the WAIT after it, if the call has one."""
    keys = call.keys
    script = ("EVAL", call.script.text) if with_text else ("EVALSHA", call.script.sha)
    request = pack((*script, str(len(keys)), *keys, *call.args))
    return [request] if call.wait is None else [request, pack(call.wait)]


def _send(connection: Connection, call: Call[Any]) -> None:
    requests = packed(call)
    call.may_be_sent = True
    connection.send_packed_command(requests)


def _read(connection: Connection, call: Call[Any]) -> object:
    try:
        try:
            return _reply(connection, call)
        except NoScriptError:
            # After a restart or SCRIPT FLUSH: send the text, which also stores the script again.
            connection.send_packed_command(packed(call, with_text=True))
            return _reply(connection, call)
    except redis.ResponseError as error:
        raise not_serving(error) or error from None


def _reply(connection: Connection, call: Call[Any]) -> object:
    if call.wait is None:
        return connection.read_response(disable_decoding=True)
    try:
        reply = connection.read_response(disable_decoding=True)
    except redis.ResponseError:
        with contextlib.suppress(redis.ResponseError):
            connection.read_response(disable_decoding=True)  # WAIT's, or the next call would get it
        raise
    return reply, connection.read_response(disable_decoding=True)


class CommandRunner:
    """Runs calls through the client's ``evalsha`` or, where a mock has none, ``eval``."""

    def __init__(self, client: Any) -> None:
        self._eval: Callable[..., object] = client.eval
        self._evalsha: Callable[..., object] | None = getattr(client, "evalsha", None)
        self._client = client

    def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        """The deadline is only checked before: the client has its own time-outs and retries."""
        if deadline is not None:
            deadline.left_s()
        try:
            return self._result(call)
        except FAULTS as error:
            server = describe_server(self._client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error

    def _result(self, call: Call[T]) -> T:
        return call.read(self._reply(call))

    def _reply(self, call: Call[T]) -> object:
        # As bytes: the client would encode text as its own settings say.
        arguments: tuple[bytes | int, ...] = (
            len(call.keys),
            *(key.encode() for key in call.keys),
            *(arg.encode() for arg in call.args),
        )
        call.may_be_sent = True
        if self._evalsha is not None:
            try:
                return self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return self._eval(call.script.text, *arguments)

    def close(self) -> None: ...
