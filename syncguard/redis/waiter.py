"""Waiting on a wake-up list instead of sleeping blind.

A refused waiter has left a flag (acquire.lua does); whoever releases sees it and pushes one
wake-up; the waiter blocks on that list with BLPOP, on a connection of the pool, and watches the
socket rather than trusting the server's timer: an idle Redis ends a BLPOP up to 100 ms late.
So the list may still be open when the time is over. The next attempt does not care, and the next
wait goes on with it; only leaving has to hang up, and then passes on what it may have swallowed.

Why a swallowed wake-up is harmless when an attempt follows: the attempt does what the wake-up
asked for, and if it is refused, then by a new holder, whose release wakes again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import redis

from syncguard._backend.optional import Refusal
from syncguard._backend.required import check_signal
from syncguard._lock.handles import Acquired
from syncguard._lock.waiting import SLICE_MS, sleep
from syncguard.redis._transport.connections import (
    LARGE_POOL,
    AsyncPool,
    Connection,
    Pool,
    give_back_if_out,
    private_connection,
    shared,
    socket_of,
    socket_timeout_ms,
    take,
)
from syncguard.redis._transport.socket_polling import Look, look_at
from syncguard.redis.calls import Call
from syncguard.redis.replies import Granted
from syncguard.types import Signal

WORTH_BLOCKING_MS: Final = 10
"""Below this a plain sleep is as good: and Redis 6.2 takes 1 ms or less for 'for ever'."""

_SERVER_LATENESS_MS: Final = 100
PASS_ON_S: Final = 1.0
_SOCKET_SHARE: Final = 0.8
"""A wait uses at most this share of the client's own time-out."""

_LONGEST_LOOK_MS: Final = 60_000
"""One look at the socket. poll refuses to wait for weeks."""


FAULTS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)


def blpop_seconds(ms: float) -> str:
    """What to tell the server: short of the wait, because it is late, but never 0."""
    return f"{max(ms - _SERVER_LATENESS_MS, ms / 2, WORTH_BLOCKING_MS / 2) / 1000:.3f}"


def longest_wait_ms(pool: Pool | AsyncPool) -> float:
    timeout_ms = socket_timeout_ms(pool)
    return float("inf") if timeout_ms is None else timeout_ms * _SOCKET_SHARE


def pass_on(call: Call[bool], pool: Pool) -> None:
    """Run ``pass_on.lua`` on a connection of its own, once, without waiting long."""
    connection = private_connection(pool, PASS_ON_S)
    with contextlib.suppress(*FAULTS):
        try:
            connection.send_command(
                "EVAL", call.script.text, str(len(call.keys)), *call.keys, *call.args
            )
            connection.read_response()
        finally:
            connection.disconnect()


class Listeners:
    """How many waiters listen on the connections of one pool: at most half of them.

    The others sleep. Were every connection taken by a waiter, the holder could not release. On a
    pool that somebody kept small, nobody listens.
    """

    def __init__(self) -> None:
        # By name, so that leaving twice, or after an interrupted entering, does no harm. A set,
        # because its add and discard need no lock, which a fork could leave locked.
        self._inside: set[object] = set()
        self._pid = os.getpid()

    @classmethod
    def on(cls, pool: Pool | AsyncPool) -> Listeners:
        return shared(pool, "listeners", cls)

    def admit(self, waiter: object, pool: Pool | AsyncPool) -> bool:
        if self._pid != os.getpid():
            self._pid, self._inside = os.getpid(), set()  # the parent's are not in the child
        if pool.max_connections < LARGE_POOL or len(self._inside) >= pool.max_connections // 2:
            return False
        self._inside.add(waiter)
        return True

    def leave(self, waiter: object) -> None:
        self._inside.discard(waiter)


class Attempts(Protocol):
    """The part of a blocking Redis backend that a waiter needs."""

    def acquire_call(
        self, key: str, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> Call[Granted | Refusal]: ...

    def run_acquire(self, call: Call[Granted | Refusal], ttl_ms: int) -> Acquired | Refusal: ...

    def pass_on_call(self, key: str) -> Call[bool]: ...

    def undo(self, lock_id: object) -> None: ...


class RedisWaiter:
    """One blocking waiter."""

    def __init__(
        self,
        backend: Attempts,
        pool: Callable[[], Pool | None],
        key: str,
        wake: str,
    ) -> None:
        self._backend = backend
        self._find_pool = pool
        self._key = key
        self._wake = wake
        self._pool: Pool | None = None
        self._connection: Connection | None = None
        self._listening = False
        self._woken = False
        self._acquired = False
        self._attempted: str | None = None

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        call = self._backend.acquire_call(self._key, ttl_ms, holder, wait_ms)
        self._attempted = call.lock_id
        answer = self._backend.run_acquire(call, ttl_ms)
        # Only now: an attempt that failed has not used the wake-up, and must pass it on.
        self._woken = False
        self._acquired = not isinstance(answer, Refusal)
        return answer

    def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        self._woken = ms >= WORTH_BLOCKING_MS and self._listen(deadline, signal)
        if self._woken:
            return True
        sleep(max(0.0, deadline - time.monotonic()) * 1000, signal)
        return False

    def close(self) -> None:
        # Whoever got the lock wakes the next by releasing it.
        must_pass_on = (self._listening or self._woken) and not self._acquired
        pool = self._pool
        self._disconnect()
        if must_pass_on and pool is not None:
            # Elsewhere: who leaves because the server hangs must not wait for the server.
            thread = threading.Thread(
                target=pass_on,
                args=(self._backend.pass_on_call(self._key), pool),
                name="syncguard-pass-on",
                daemon=True,
            )
            with contextlib.suppress(RuntimeError):  # no thread to be had: they will time out
                thread.start()

    def undo(self) -> None:
        try:
            self._disconnect()  # if the interrupt struck in close()
        finally:
            # An id that was never stored is released without harm.
            if self._attempted is not None:
                self._backend.undo(self._attempted)

    def _listen(self, deadline: float, signal: Signal | None) -> bool:
        while (left_ms := (deadline - time.monotonic()) * 1000) > 0:
            check_signal(signal)
            try:
                outcome = self._read_or_listen(left_ms)
            except FAULTS:
                # The list is a convenience. Without it, this is plain backoff, and the attempt
                # that follows meets the same server and says what is wrong with it.
                self._disconnect()
                return False
            if isinstance(outcome, bool):
                return outcome
            # Not in there: what strikes while we wait came from outside, for instance a time
            # limit, and may well be a TimeoutError.
            outcome(min(left_ms, _LONGEST_LOOK_MS if signal is None else SLICE_MS))
        return False

    def _read_or_listen(self, left_ms: float) -> bool | Look:
        """Whether we were woken, or cannot be; else what to look at until there is news."""
        connection = self._connect()
        if connection is None:
            return False
        if self._listening:
            socket_of(connection)  # raises if there is none: redis-py would open another
            # Asked even before we look: TLS and the parser may hold back what no socket shows.
            if connection.can_read(0):
                popped = connection.read_response(disable_decoding=True)
                self._listening = False
                if popped is not None:
                    return True
        if not self._listening:
            if left_ms < WORTH_BLOCKING_MS:
                return False
            # Said before it is so: an interrupt in between must find the connection dirty.
            self._listening = True
            connection.send_command("BLPOP", self._wake, self._blpop_seconds(left_ms))
        return look_at(socket_of(connection))

    def _blpop_seconds(self, ms: float) -> str:
        assert self._pool is not None
        return blpop_seconds(min(ms, longest_wait_ms(self._pool)))

    def _connect(self) -> Connection | None:
        if self._connection is None:
            pool = self._find_pool()
            if pool is not None:
                self._pool = pool
                try:
                    if Listeners.on(pool).admit(self, pool):
                        self._connection = take(pool)
                finally:
                    if self._connection is None:
                        Listeners.on(pool).leave(self)
        return self._connection

    def _disconnect(self) -> None:
        """Where an interrupt breaks this off, the next time goes on."""
        pool = self._pool
        if pool is None:
            return
        try:
            if self._connection is not None:
                self._give_back(pool, self._connection)
        finally:
            Listeners.on(pool).leave(self)

    def _give_back(self, pool: Pool, connection: Connection) -> None:
        if self._listening:
            connection.disconnect()
            self._listening = False
        self._connection = None
        try:
            pool.release(connection)
        except BaseException:
            give_back_if_out(pool, connection)
            raise
