"""Listens for notifications: one thread and one connection for all waiters of a process.

A release sends NOTIFY where somebody waits. The listener wakes one waiter of this process for it,
blocking or asyncio. Behind PgBouncer in transaction mode LISTEN has no effect: the listener finds
that out, and waiters sleep between their attempts.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from syncguard._backend.deadline import Deadline
from syncguard._heartbeat.wake_up import WakeUp
from syncguard._lock.background_threads import run_in_thread
from syncguard.errors import LockError
from syncguard.postgres._transport.connect import connect, drive
from syncguard.postgres._transport.connection import Connection, NotListeningError
from syncguard.postgres.address import Address
from syncguard.postgres.error_codes import FAULTS
from syncguard.postgres.statement_calls import CHANNEL

IDLE_S: Final = 5.0
"""How long the connection stays open after the last waiter."""

_CONNECT_MS: Final = 5_000
_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Before each attempt to connect again; the last one also before all others."""

_POOLED_S: Final = 60.0
"""How long a pooler is believed to be in between, before the listener tries again."""


class Subscription:
    """One waiter: what wakes it."""

    def __init__(self, payload: str, wake: Callable[[], None]) -> None:
        self.payload: Final = payload
        self._wake = wake
        self.notified = False
        """A release was announced. Set before ``wake`` is called."""
        self.must_check = False
        """Announcements may have been missed: look whether the lock is free."""

    def notify(self) -> None:
        self.notified = True
        self._wake()

    def check(self) -> None:
        self.must_check = True
        self._wake()

    def wake(self) -> None:
        self._wake()


class Listener:
    """The listener for one address. ``of`` returns that of this process."""

    _all: Final[dict[tuple[int, tuple[bytes, ...]], Listener]] = {}

    def __init__(self, address: Address) -> None:
        self._address = address
        self._waiters: defaultdict[str, list[Subscription]] = defaultdict(list)
        self._guard = threading.Lock()
        self._is_started = False
        self._wake_up: WakeUp | None = None
        self._pooled_until = 0.0
        self.is_active = False
        """Whether announcements arrive now."""

    @classmethod
    def of(cls, address: Address) -> Listener:
        """The one listener for this address. A forked child has its own."""
        key = (os.getpid(), address.conninfos)
        listener = cls._all.get(key)
        if listener is None:
            listener = cls._all.setdefault(key, cls(address))
        return listener

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is in between, so that nobody will be woken."""
        return time.monotonic() < self._pooled_until

    def subscribe(self, subscription: Subscription) -> None:
        """Wake this waiter from now on, if the listener is active."""
        with self._guard:
            self._waiters[subscription.payload].append(subscription)

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._guard:
            waiting = self._waiters.get(subscription.payload, [])
            if subscription in waiting:
                waiting.remove(subscription)
            if not waiting:
                self._waiters.pop(subscription.payload, None)

    def pass_on(self, payload: str) -> None:
        """Wake another waiter of this process instead of one that gave up."""
        self._notify(payload)

    def start(self) -> None:
        """Begin to listen, on a thread. Returns at once; ``check`` is called when it is active."""
        with self._guard:
            if self.is_pooled or self._is_started:
                return
            self._is_started = True
            try:
                run_in_thread(self._run)
            except RuntimeError:  # no thread available: waiters sleep
                self._is_started = False

    def close_if_unused(self) -> None:
        """End the thread and close the connection now, unless somebody waits."""
        wake_up = self._wake_up
        if wake_up is not None and not self._waiters:
            wake_up.send()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._connect_and_listen()
        finally:
            with self._guard:
                self._is_started = False
        if self._waiters:
            # Somebody subscribed after this thread had decided to end, and ``start`` did nothing.
            self.start()

    def _connect_and_listen(self) -> None:
        failures = 0
        while True:
            try:
                connection = self._connected()
            except NotListeningError:
                self._pooled_until = time.monotonic() + _POOLED_S
                self._wake_all(Subscription.wake)
                return
            except (LockError, *FAULTS):
                self._wake_all(Subscription.wake)
                time.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                if not self._waiters:
                    return
                continue
            failures = 0
            try:
                self.is_active = True
                self._wake_all(Subscription.check)
                if self._listen(connection):
                    return
            except FAULTS:
                continue
            finally:
                self.is_active = False
                connection.close()

    def _connected(self) -> Connection:
        deadline = Deadline.after(_CONNECT_MS)
        connection = connect(self._address, deadline)
        try:
            drive(connection.listen(CHANNEL), deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _listen(self, connection: Connection) -> bool:
        """Wake waiters until the listener is unused. Raises if the connection breaks."""
        wake_up = self._wake_up = WakeUp()
        used_at = time.monotonic()
        poll = select.poll()
        poll.register(wake_up.fileno(), select.POLLIN)
        poll.register(connection.fileno, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(IDLE_S * 1000)}
                for payload in connection.notifications():
                    self._notify(payload)
                if self._waiters:
                    used_at = time.monotonic()
                elif wake_up.fileno() in ready or time.monotonic() - used_at > IDLE_S:
                    return True
                wake_up.clear()
        finally:
            self._wake_up = None
            wake_up.close()

    def _notify(self, payload: str) -> None:
        """Wake one waiter of this process: the one that waits longest."""
        with self._guard:
            waiting = self._waiters.get(payload, [])
            chosen = next((each for each in waiting if not each.notified), None)
        if chosen is not None:
            chosen.notify()

    def _wake_all(self, wake: Callable[[Subscription], None]) -> None:
        with self._guard:
            every = [each for waiting in self._waiters.values() for each in waiting]
        for each in every:
            wake(each)
