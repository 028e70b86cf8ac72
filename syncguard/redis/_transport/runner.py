"""Running a call on a blocking connection: send, read, recover.

``ConnectionRunner`` talks to real sockets and is what makes SyncGuard quick; ``CommandRunner`` goes
through the client's own commands, for clusters and for mocks. Both know what to do when Redis has
forgotten a script, and both turn every failure into a LockError.
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
    give_back_if_out,
    packer,
    place_of,
    shared,
    socket_of,
    take,
)
from syncguard.redis._transport.error_codes import FAULTS, NOT_SERVING, lock_error, not_serving
from syncguard.redis._transport.socket_polling import Look, Nearness, look_at
from syncguard.redis.calls import Call

T = TypeVar("T")

FRESH_FOR_S: Final = 1.0
"""A spare connection that lay longer than this goes through the pool, which checks its health."""

_pack: Final = packer()
_LOST: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
_ELSEWHERE: Final[tuple[type[Exception], ...]] = (*_LOST, *NOT_SERVING)
"""This connection is of no more use. Another may be."""


class Runner(Protocol):
    """Runs calls, one round trip each."""

    def run(self, call: Call[T]) -> T: ...

    def close(self) -> None: ...


class ConnectionRunner:
    """Runs calls on connections of the client's own pool.

    One connection at most is kept back between calls, because taking one from the pool costs
    more than the call. Threads that meet take others. A forked child starts without.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keeps = pool.max_connections >= LARGE_POOL
        # One for the pool, not one for each backend on it.
        self._spare: list[tuple[Connection, float]] = shared(pool, "spare", list)
        self._nearness = shared(pool, "nearness", Nearness)
        self._place = place_of(pool)
        # How to look at the last kept one's socket: finding that out costs as much as the look.
        self._looked_at: tuple[socket.socket | None, Look] = (None, lambda _ms: ())

    def run(self, call: Call[T]) -> T:
        # An interrupt strikes where a function begins, or has ended. So a connection is in a
        # variable as soon as it is taken, and is kept by a single call, without one of ours around.
        connection: Connection | None = None
        clean, used_at = False, 0.0
        try:
            try:
                connection, look = self._take(checked=call.if_resent is not None)
                reply, resent = self._exchange(connection, call, look)
                clean, used_at = True, time.monotonic()
            except redis.ResponseError as error:
                clean = not isinstance(error, NOT_SERVING)  # the reply was read
                raise
            finally:
                if connection is not None:
                    if not clean:
                        # Interrupted, perhaps between sending and reading: the next call must not
                        # find the reply to this one. If this is interrupted too, nobody gets it.
                        connection.disconnect()
                    if self._keeps and not self._spare:
                        self._spare.append((connection, used_at))
                    else:
                        try:
                            self._pool.release(connection)
                        except BaseException:
                            give_back_if_out(self._pool, connection)
                            raise
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, place=self._place, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    def close(self) -> None:
        while self._spare:
            self._pool.release(self._spare.pop()[0])

    def _take(self, *, checked: bool) -> tuple[Connection, Look | None]:
        """A connection; if it is the kept one, also how to look at it.

        ``checked``: never one that is dead already. For calls whose second sending cannot be told
        from a first, it pays to look before.
        """
        try:
            connection, given_at = self._spare.pop()
        except IndexError:
            return take(self._pool), None
        try:
            # In a forked child the socket is the parent's. The pool starts afresh here too.
            ours = connection.pid == os.getpid()
            try:
                if ours and time.monotonic() - given_at <= FRESH_FOR_S:
                    look = self._look_at(socket_of(connection))
                    if not (checked and look(0)):  # nothing was asked: news can only be its end
                        return connection, look
            except redis.ConnectionError:
                pass
            if ours:
                self._pool.release(connection)
        except BaseException:
            give_back_if_out(self._pool, connection)
            raise
        return take(self._pool), None

    def _look_at(self, sock: socket.socket) -> Look:
        known, look = self._looked_at
        if known is not sock:
            look = look_at(sock)
            self._looked_at = sock, look
        return look

    def _exchange(
        self, connection: Connection, call: Call[T], look: Look | None
    ) -> tuple[object, bool]:
        try:
            _send(connection, call)
            if look is None:
                return _read(connection, call), False
            # Of the threads that meet only the one with the kept connection lingers.
            sent_at = self._nearness.linger(look)
            reply = _read(connection, call)
            self._nearness.note(sent_at)
            return reply, False
        except _ELSEWHERE as error:
            connection.disconnect()
            # A server that restarted closed its side of a connection that we kept; one that was
            # demoted left all of them open. That proves nothing about the server now, so one
            # fresh try, whatever the client's retries are. A time-out does prove something.
            # Sending twice is safe: every call is idempotent.
            timed_out = isinstance(error, redis.TimeoutError | TimeoutError)
            fresh_try = isinstance(error, NOT_SERVING) or (look is not None and not timed_out)
            return self._again(connection, call, error, counts=not fresh_try)

    def _again(
        self, connection: Connection, call: Call[T], error: Exception, *, counts: bool
    ) -> tuple[object, bool]:
        """Go on as the client's retry policy says; ``counts``: ``error`` is its first failure.

        Also whether an earlier sending may have been carried out.
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
            # A restart or SCRIPT FLUSH: send the text once, which also stores it again.
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
            place = place_of(self._client)
            raise lock_error(error, place=place, key=call.key, lock_id=call.lock_id) from error

    def _reply(self, call: Call[T], arguments: tuple[str | int, ...]) -> object:
        if self._evalsha is not None:
            try:
                return self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return self._eval(call.script.text, *arguments)

    def close(self) -> None: ...
