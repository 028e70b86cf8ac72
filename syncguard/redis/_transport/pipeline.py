"""Many calls in few round trips, on one connection of the client's own pool.

Only for calls that may be sent twice. What a broken connection left without a reply is sent again,
one call at a time; the first call that fails answers for the rest, so that a dead server costs its
time-out once and not once a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from redis.exceptions import ResponseError

from syncguard.errors import LockError
from syncguard.redis._transport.connections import Connection, Pool, give_back_if_out, take
from syncguard.redis._transport.error_codes import FAULTS
from syncguard.redis._transport.runner import Runner
from syncguard.redis.calls import Call

T = TypeVar("T")

_AT_ONCE: Final = 256
"""So many requests are sent before a reply is read: few enough that no socket buffer fills up."""

_NO_REPLY: Final = object()


def run_together(pool: Pool, runner: Runner, calls: Sequence[Call[T]]) -> list[T | LockError]:
    """The result of each call, or its error, in their order. ``runner`` runs one by itself."""
    # The first by itself: Redis then knows the script, and a server that is down is known to be.
    results = run_in_turn(runner, calls[:1])
    runner.close()  # the connection that it keeps serves here: no other is opened
    failed = next((first for first in results if isinstance(first, LockError)), None)
    for start in range(1, len(calls), _AT_ONCE):
        chunk = calls[start : start + _AT_ONCE]
        replies = [_NO_REPLY] * len(chunk) if failed else _exchange(pool, chunk)
        for call, reply in zip(chunk, replies, strict=True):
            if failed and reply is _NO_REPLY:
                results.append(failed)
                continue
            try:
                results.append(_result(call, reply, runner))
            except LockError as error:
                results.append(error)
                failed = error if reply is _NO_REPLY else failed
    return results


def _result(call: Call[T], reply: object, runner: Runner) -> T:
    if reply is _NO_REPLY:
        return runner.run(_resent(call))
    if isinstance(reply, ResponseError):  # such as that of a server that was demoted
        return runner.run(call)
    return call.read(reply)


def run_in_turn(runner: Runner, calls: Sequence[Call[T]]) -> list[T | LockError]:
    """The same without a pipeline, for clusters and for mocks."""
    results: list[T | LockError] = []
    failed: LockError | None = None
    for call in calls:
        try:
            results.append(failed or runner.run(call))
        except LockError as error:
            failed = error
            results.append(error)
    return results


def _exchange(pool: Pool, calls: Sequence[Call[T]]) -> list[object]:
    replies: list[object] = []
    connection: Connection | None = None
    try:
        try:
            connection = take(pool)
            connection.send_packed_command(connection.pack_commands(map(_command, calls)))
            while len(replies) < len(calls):
                replies.append(_reply(connection))
        finally:
            if connection is not None:
                if len(replies) < len(calls):
                    connection.disconnect()  # the next call must not find the replies to these
                try:
                    pool.release(connection)
                except BaseException:
                    give_back_if_out(pool, connection)
                    raise
    except FAULTS:
        pass  # what has no reply is run by itself, and tells what is wrong
    return [*replies, *[_NO_REPLY] * (len(calls) - len(replies))]


def _reply(connection: Connection) -> object:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _command(call: Call[T]) -> tuple[str, ...]:
    return ("EVALSHA", call.script.sha, str(len(call.keys)), *call.keys, *call.args)


def _resent(call: Call[T]) -> Call[T]:
    """The call, which may have been carried out already: its reply is read as that of a copy."""
    if_resent, read = call.if_resent, call.read
    return replace(call, read=lambda reply: if_resent(reply, read(reply))) if if_resent else call
