"""One connection for all blocking waiters of a process and server. On a cluster: of a bucket.

One of the waiting threads is the leader. It sends one BLPOP for the wake-up lists of all waiters,
polls its socket, and gives each wake-up to the waiter that has waited longest. The others sleep. A
leader that stops waiting calls the next one, which continues with the same BLPOP. So a process with
one waiter needs no second thread, and none has to be started where a task may be interrupted.

A BLPOP that is pending cannot be changed. A waiter for another list pushes to the *bell*, a list
that every BLPOP of this process includes; then the leader sends a BLPOP with all lists. No wake-up
is missed in between, because each stays in its list for two seconds.

The leader polls the socket instead of relying on the server's timer: an idle Redis ends a BLPOP up
to 100 ms late. If the last waiter leaves while a BLPOP is pending, the connection is closed, and a
wake-up that the BLPOP may have consumed is passed on. A wake-up for a waiter that has left is
passed on together with the next BLPOP.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Final

import redis

from syncguard._backend.required import check_signal
from syncguard._lock.sleeping_waiter import SLICE_MS
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
from syncguard.redis._transport.request_packing import Command, pack
from syncguard.redis._transport.socket_polling import Poll, poll_of
from syncguard.redis.local_waiters import CLUSTER_LIMIT, MAX_LISTS, LocalWaiters, WakeList
from syncguard.redis.names import Space
from syncguard.redis.script_calls import Call
from syncguard.types import Signal

FAULTS: Final = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)

PASS_ON_S: Final = 1.0
PAUSE_AFTER_FAULT_S: Final = 1.0
"""After a fault nobody listens for this long. The attempts report the fault to the callers."""

_SOCKET_TIMEOUT_SHARE: Final = 0.8
_MAX_BLPOP_MS: Final = 30_000
_MIN_BLPOP_MS: Final = 5
"""Redis 6.2 blocks without limit for a timeout of 1 ms or less."""

_OVERDUE_S: Final = 2.0
"""A BLPOP that is not answered this long after its end: the connection is dead."""

_MAX_REST_S: Final = 60.0
"""poll() and locks reject very long timeouts."""


def blpop_ms(pool: Pool | AsyncPool) -> float:
    """How long one BLPOP lasts: shorter than the client's socket timeout."""
    timeout_ms = socket_timeout_ms(pool)
    if timeout_ms is None:
        return _MAX_BLPOP_MS
    return max(_MIN_BLPOP_MS, min(_MAX_BLPOP_MS, timeout_ms * _SOCKET_TIMEOUT_SHARE))


def overdue_at(blpop_lasts_ms: float) -> float:
    """When a BLPOP that begins now must have been answered, on ``time.monotonic``."""
    return time.monotonic() + blpop_lasts_ms / 1000 + _OVERDUE_S


def eval_command(call: Call[bool]) -> Command:
    return ("EVAL", call.script.text, str(len(call.keys)), *call.keys, *call.args)


def blpop_command(lists: Iterable[str], bell: str, ms: float) -> Command:
    return ("BLPOP", *lists, bell, f"{ms / 1000:.3f}")


def new_bell(space: Space) -> str:
    return space.bell_head + secrets.token_hex(8)


def pass_on(lists: Iterable[WakeList], pool: Pool) -> None:
    """Run ``pass_on_wake_up.lua`` for each lock on a separate connection, with a short timeout."""
    connection = private_connection(pool, PASS_ON_S)
    with contextlib.suppress(*FAULTS):
        try:
            for wake_list in lists:
                connection.send_packed_command([pack(eval_command(wake_list.pass_on))])
                connection.read_response()
        finally:
            connection.disconnect()


class Place:
    """The place of one waiter among those of its process."""

    __slots__ = (
        "_asleep",
        "interrupted",
        "is_listed",
        "is_woken",
        "thread",
        "waits_now",
        "wake_list",
    )

    def __init__(self, wake_list: WakeList) -> None:
        self.wake_list = wake_list
        self.waits_now = False
        self.is_listed = False
        """Added to the waiters, and no wake-up was used since then."""
        self.is_woken = False
        self.thread = 0
        """The identity of the thread that waits here."""
        self.interrupted: Place | None = None
        """The leader that continues after this one, which waits in a signal handler."""
        # Released by whoever calls this waiter. Not an Event: a signal handler that waits for a
        # lock itself may call the waiter that it interrupted, and Event.set would block.
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        self.is_woken = True
        self.call()

    def call(self) -> None:
        """End the sleep. The waiter sees for itself whether it is woken, or there is no leader."""
        with contextlib.suppress(RuntimeError):  # called already
            self._asleep.release()

    def sleep(self, seconds: float) -> None:
        """Sleep until called."""
        self._asleep.acquire(timeout=seconds)

    def use_wake_up(self) -> None:
        """An attempt follows: another wake-up needs another ``join``."""
        self.is_woken = self.is_listed = False


class WakeListener:
    """The connection, and the waiters that it serves. Only the leader uses the connection."""

    def __init__(self, pool: Pool, space: Space, *, is_limited: bool) -> None:
        self.bell = new_bell(space)
        self._pool = pool
        self._is_limited = is_limited
        self._waiters: LocalWaiters[Place] = LocalWaiters()
        # One entry at most. ``setdefault`` decides between threads in one step.
        self._leader: dict[None, Place] = {}
        self._connection: Connection | None = None
        self._pending: dict[str, WakeList] = {}
        """The lists of the BLPOP that was sent and not answered."""
        self._unread = 0
        """How many replies to passing on come before the reply to the BLPOP."""
        self._owed: dict[str, WakeList] = {}
        """Wake-ups that were consumed, perhaps, and must be passed on."""
        self._is_in_use = False
        """Still True when another leader begins: the last one was interrupted in the middle."""
        self._overdue_at = 0.0
        self._faulty_until = 0.0

    @classmethod
    def on(cls, pool: Pool, space: Space, *, clustered: bool) -> WakeListener | None:
        """The listener of all backends on this pool. None: the pool is too small for one."""
        if pool.max_connections < LARGE_POOL:
            return None
        listeners: dict[tuple[int, str], WakeListener] = shared(pool, "listeners", dict)
        # With the process id: a forked child has no waiters yet, and no connection.
        name = os.getpid(), space.prefix if clustered else ""
        known = listeners.get(name)
        return known or listeners.setdefault(name, cls(pool, space, is_limited=clustered))

    # -- for waiters --------------------------------------------------------------------------

    def join(self, place: Place) -> bool:
        """Add a waiter. True: the bell must be rung, because the BLPOP has not the new list."""
        place.is_listed = True
        self._waiters.add(place)
        # In this order: the leader compares its lists with the waiters after it has set _pending.
        pending = self._pending
        return place.wake_list not in pending and 0 < len(pending) < MAX_LISTS

    def wait(self, place: Place, deadline: float, signal: Signal | None) -> bool:
        """Wait for a wake-up until the deadline. Returns whether there was one."""
        slice_s = _MAX_REST_S if signal is None else SLICE_MS / 1000
        place.thread, place.waits_now = _thread.get_ident(), True
        try:
            while not place.is_woken:
                check_signal(signal)
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                pause = self._faulty_until - time.monotonic()
                if pause > 0:
                    place.sleep(min(left, slice_s, pause))
                elif self._is_leader(place):
                    self._lead(place, min(left, slice_s))
                else:
                    place.sleep(min(left, slice_s))
            return True
        finally:
            place.waits_now = False
            self._resign(place)

    def leave(self, place: Place, *, has_wake_up: bool, acquired: bool) -> None:
        """End waiting. If an interrupt stops this, the next call completes it.

        ``has_wake_up``: a wake-up reached this waiter, and no attempt followed.
        """
        place.waits_now = False
        lost: dict[str, WakeList] = {}
        was_removed = self._waiters.remove(place)
        if has_wake_up or (place.is_listed and not was_removed):
            # Passed on through Redis, even if it may reach a waiter of this process again: a
            # leader that polls its socket can be woken in no other way.
            lost[place.wake_list] = place.wake_list
        self._resign(place)
        if not self._waiters and self._leader.setdefault(None, place) is place:
            try:
                lost.update(self._disconnect())
            finally:
                self._resign(place)
        if acquired:  # wakes the next waiter when it releases
            lost.pop(place.wake_list, None)
        if lost:
            self._pass_on_in_background(lost.values())

    # -- the leader ---------------------------------------------------------------------------

    def _is_leader(self, place: Place) -> bool:
        """Become the leader if there is none."""
        leader = self._leader.setdefault(None, place)
        if leader is not place and leader.thread == place.thread and not self._is_in_use:
            # A signal handler waits. It has interrupted the leader, which cannot do anything
            # before the handler returns.
            place.interrupted, leader.waits_now = leader, False
            self._leader[None] = leader = place
        return leader is place

    def _resign(self, place: Place) -> None:
        """Make room for another leader, and call one."""
        interrupted = place.interrupted
        if interrupted is not None:
            self._leader[None], interrupted.waits_now = interrupted, True
            place.interrupted = None
            self._lead(interrupted, 0)  # listen for it: it polls, and sends nothing before that
        elif self._leader.get(None) is place:
            self._leader.pop(None, None)
        if not self._leader:
            successor = self._waiters.first_that_waits()
            if successor is not None:
                successor.call()

    def _lead(self, place: Place, seconds: float) -> None:
        try:
            poll = self._receive_and_listen(place)
        except FAULTS:
            # The lists are optional. Without them the waiters sleep, and the next attempt reports
            # the error of the server.
            self._faulty_until = time.monotonic() + PAUSE_AFTER_FAULT_S
            self._owed = self._disconnect()
            return
        if poll is not None:
            # Outside of the try: an exception during the poll comes from outside, for example from
            # a time limit, and may be a TimeoutError.
            poll(seconds * 1000)

    def _receive_and_listen(self, place: Place) -> Poll | None:
        """Read what has arrived, and listen again. Returns how to wait for the next reply."""
        if self._is_in_use:
            self._owed = self._disconnect()
        # Reset at the end only: after an interrupt in between, the connection is not used again.
        self._is_in_use = True
        connection = self._connect()
        sock = socket_of(connection)  # raises if there is none: redis-py would open another
        # Check before polling: TLS and the parser may buffer data that poll cannot detect.
        while self._pending and connection.can_read(0):
            self._read(connection)
        if self._pending and time.monotonic() > self._overdue_at:
            raise redis.ConnectionError("the server does not answer")
        if not self._pending and not place.is_woken:
            self._listen(connection)
        self._is_in_use = False
        return None if place.is_woken else poll_of(sock)

    def _read(self, connection: Connection) -> None:
        if self._unread:
            with contextlib.suppress(redis.ResponseError):
                connection.read_response(disable_decoding=True)
            self._unread -= 1
            return
        popped = connection.read_response(disable_decoding=True)
        name = popped[0].decode() if isinstance(popped, list) else None
        wake_list = None if name is None else self._pending.get(name)  # None: the bell
        if wake_list is not None and not self._waiters.wake_longest(wake_list):
            self._owed[wake_list] = wake_list
        self._pending = {}

    def _listen(self, connection: Connection) -> None:
        lists = self._waiters.lists()
        self._pending = lists
        while not self._waiters.is_covered(lists):  # one more came before it could see _pending
            self._pending = lists = self._waiters.lists()
        owed = list(self._owed.values())
        self._unread = len(owed)
        lasts_ms = blpop_ms(self._pool)
        self._overdue_at = overdue_at(lasts_ms)
        commands = [eval_command(wake_list.pass_on) for wake_list in owed]
        commands.append(blpop_command(lists, self.bell, lasts_ms))
        connection.send_packed_command([pack(command) for command in commands])
        self._owed = {}

    def _connect(self) -> Connection:
        if self._connection is None:
            if self._is_limited and not CLUSTER_LIMIT.admit(self):
                raise redis.ConnectionError("too many buckets have waiters")
            self._connection = take(self._pool)
        return self._connection

    def _disconnect(self) -> dict[str, WakeList]:
        """Return the connection to its pool. Returns the lists of wake-ups that may be lost.

        If an interrupt stops this, the next call completes it.
        """
        connection, pool = self._connection, self._pool
        lost = {**self._owed, **self._pending}
        if connection is not None:
            if self._pending or self._is_in_use:
                connection.disconnect()
            self._is_in_use = True
            try:
                pool.release(connection)
            except BaseException:
                release_if_in_use(pool, connection)
                raise
            finally:
                self._connection = None
        CLUSTER_LIMIT.leave(self)
        self._pending, self._owed, self._unread, self._is_in_use = {}, {}, 0, False
        return lost

    def _pass_on_in_background(self, lists: Iterable[WakeList]) -> None:
        # In a thread: a waiter that gives up because the server hangs must not wait for it. Not
        # threading.Thread: its start() waits for the thread, for ever if an exception for this
        # task arrives in the new thread instead, as on CPython 3.10 and 3.11.
        with contextlib.suppress(RuntimeError):  # no thread could start; the others time out
            _thread.start_new_thread(pass_on, (tuple(lists), self._pool))
