"""Runs many calls in few round trips, on one connection of the client's own pool.

Only for calls that may be sent twice. Calls without a reply after a broken connection are sent
again, one at a time. The first call that then fails gives its error to the rest, so that an
unreachable server costs one time-out, and not one per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from redis.exceptions import ResponseError

from syncguard.errors import LockError
from syncguard.redis._transport.connections import Connection, Pool, release_if_in_use, take
from syncguard.redis._transport.error_codes import FAULTS
from syncguard.redis._transport.request_packing import pack
from syncguard.redis._transport.runner import Runner
from syncguard.redis.script_calls import Call

T = TypeVar("T")

_MAX_IN_FLIGHT: Final = 256
"""How many requests are sent before a reply is read: few enough not to fill a socket buffer."""

_NO_REPLY: Final = object()


def run_pipelined(pool: Pool, runner: Runner, calls: Sequence[Call[T]]) -> list[T | LockError]:
    """Return the result or the error of each call, in order. ``runner`` runs a single call."""
    # Run the first call alone: it loads the script, and it fails if the server is down.
    results = run_one_by_one(runner, calls[:1])
    runner.close()  # returns the kept connection to the pool, so that it is reused here
    failed = next((first for first in results if isinstance(first, LockError)), None)
    for start in range(1, len(calls), _MAX_IN_FLIGHT):
        chunk = calls[start : start + _MAX_IN_FLIGHT]
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
    if isinstance(reply, ResponseError):  # for example from a primary that is now a replica
        return runner.run(call)
    return call.read(reply)


def run_one_by_one(runner: Runner, calls: Sequence[Call[T]]) -> list[T | LockError]:
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
            connection.send_packed_command([pack(_command(call)) for call in calls])
            while len(replies) < len(calls):
                replies.append(_reply(connection))
        finally:
            if connection is not None:
                if len(replies) < len(calls):
                    connection.disconnect()  # the next call must not read replies to these calls
                try:
                    pool.release(connection)
                except BaseException:
                    release_if_in_use(pool, connection)
                    raise
    except FAULTS:
        pass  # calls without a reply run one by one, and report the error
    return [*replies, *[_NO_REPLY] * (len(calls) - len(replies))]


def _reply(connection: Connection) -> object:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _command(call: Call[T]) -> tuple[str, ...]:
    return ("EVALSHA", call.script.sha, str(len(call.keys)), *call.keys, *call.args)


def _resent(call: Call[T]) -> Call[T]:
    """A copy of the call that reads its reply as that of a request that was sent twice."""
    if_resent, read = call.if_resent, call.read
    return replace(call, read=lambda reply: if_resent(reply, read(reply))) if if_resent else call
