"""Waits on a wake-up list instead of only sleeping.

When acquire.lua refuses a waiter, it sets a flag. A release that finds the flag pushes one wake-up.
The waiter blocks on that list with BLPOP, on a connection of the pool. It polls the socket instead
of relying on the server's timer: an idle Redis ends a BLPOP up to 100 ms late. So the BLPOP may
still be pending when the wait is over. The next attempt does not need the connection, and the next
wait continues with the same BLPOP. Only ``close`` has to close the connection, and then wakes
another waiter, because the BLPOP may have consumed a wake-up.

A consumed wake-up causes no harm if an attempt follows: the attempt acquires the lock, or a new
holder has it, and the release of that holder pushes another wake-up.
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
from syncguard._lock.sleeping_waiter import SLICE_MS, sleep
from syncguard.redis._transport.connections import (
    LARGE_POOL,
    AsyncPool,
    Connection,
    Pool,
    private_connection,
    release_if_in_use,
    shared,
    socket_of,
    socket_timeout_ms,
    take,
)
from syncguard.redis._transport.socket_polling import Poll, poll_of
from syncguard.redis.replies import Granted
from syncguard.redis.script_calls import Call
from syncguard.types import Signal

MIN_BLPOP_WAIT_MS: Final = 10
"""Below this we only sleep. Redis 6.2 blocks without limit for a timeout of 1 ms or less."""

_SERVER_TIMER_DELAY_MS: Final = 100
PASS_ON_S: Final = 1.0
_SOCKET_TIMEOUT_SHARE: Final = 0.8
"""A BLPOP lasts at most this share of the client's socket timeout."""

_MAX_POLL_MS: Final = 60_000
"""The longest single poll of the socket. poll() rejects very long timeouts."""


FAULTS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)


def blpop_seconds(ms: float) -> str:
    """The timeout for BLPOP: shorter than the wait, because Redis ends it late, but never 0."""
    return f"{max(ms - _SERVER_TIMER_DELAY_MS, ms / 2, MIN_BLPOP_WAIT_MS / 2) / 1000:.3f}"


def longest_wait_ms(pool: Pool | AsyncPool) -> float:
    timeout_ms = socket_timeout_ms(pool)
    return float("inf") if timeout_ms is None else timeout_ms * _SOCKET_TIMEOUT_SHARE


def pass_on(call: Call[bool], pool: Pool) -> None:
    """Run ``wake_next_waiter.lua`` once on a separate connection, with a short timeout."""
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
    """Limits the waiters that listen on connections of one pool to half of the connections.

    The other waiters sleep. If waiters used every connection, the holder could not release. On a
    small pool no waiter listens.
    """

    def __init__(self) -> None:
        # A set of waiters, so that leaving twice, or after an interrupted entry, causes no harm.
        # Its add and discard need no lock, which a fork could copy while it is locked.
        self._inside: set[object] = set()
        self._pid = os.getpid()

    @classmethod
    def on(cls, pool: Pool | AsyncPool) -> Listeners:
        return shared(pool, "listeners", cls)

    def admit(self, waiter: object, pool: Pool | AsyncPool) -> bool:
        if self._pid != os.getpid():
            self._pid, self._inside = os.getpid(), set()  # a forked child has no waiters yet
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
        # Reset only now: a failed attempt has not used the wake-up, and must pass it on.
        self._woken = False
        self._acquired = not isinstance(answer, Refusal)
        return answer

    def wait(self, ms: float, signal: Signal | None) -> bool:
        check_signal(signal)
        deadline = time.monotonic() + ms / 1000
        self._woken = ms >= MIN_BLPOP_WAIT_MS and self._listen(deadline, signal)
        if self._woken:
            return True
        sleep(max(0.0, deadline - time.monotonic()) * 1000, signal)
        return False

    def close(self) -> None:
        # A waiter that acquired the lock wakes the next one when it releases.
        must_pass_on = (self._listening or self._woken) and not self._acquired
        pool = self._pool
        if pool is not None:
            self._disconnect()
        if must_pass_on and pool is not None:
            # In a thread: a waiter that gives up because the server hangs must not wait for it.
            thread = threading.Thread(
                target=pass_on,
                args=(self._backend.pass_on_call(self._key), pool),
                name="syncguard-pass-on",
                daemon=True,
            )
            with contextlib.suppress(RuntimeError):  # no thread could start; the others time out
                thread.start()

    def undo(self) -> None:
        try:
            self._disconnect()  # in case close() was interrupted
        finally:
            # Releasing a lock id that was never stored does nothing.
            if self._attempted is not None:
                self._backend.undo(self._attempted)

    def _listen(self, deadline: float, signal: Signal | None) -> bool:
        while (left_ms := (deadline - time.monotonic()) * 1000) > 0:
            check_signal(signal)
            try:
                outcome = self._read_or_listen(left_ms)
            except FAULTS:
                # The list is optional. Without it the waiter sleeps, and the next attempt reports
                # the error of the server.
                self._disconnect()
                return False
            if isinstance(outcome, bool):
                return outcome
            # Outside of the try: an exception during the poll comes from outside, for example from
            # a time limit, and may be a TimeoutError.
            outcome(min(left_ms, _MAX_POLL_MS if signal is None else SLICE_MS))
        return False

    def _read_or_listen(self, left_ms: float) -> bool | Poll:
        """Return whether a wake-up arrived; or the function that polls for one."""
        connection = self._connect()
        if connection is None:
            return False
        if self._listening:
            socket_of(connection)  # raises if there is none: redis-py would open another
            # Check before polling: TLS and the parser may buffer data that poll cannot detect.
            if connection.can_read(0):
                popped = connection.read_response(disable_decoding=True)
                self._listening = False
                if popped is not None:
                    return True
        if not self._listening:
            if left_ms < MIN_BLPOP_WAIT_MS:
                return False
            # Set before sending: after an interrupt in between, the connection must not be reused.
            self._listening = True
            connection.send_command("BLPOP", self._wake, self._blpop_seconds(left_ms))
        return poll_of(socket_of(connection))

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
        """Release the connection. If an interrupt stops this, the next call completes it."""
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
            release_if_in_use(pool, connection)
            raise
