"""Per-backend connection state of the heartbeats, and the selector of their thread."""

from __future__ import annotations

import contextlib
import logging
import selectors
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, Final, cast

from syncguard._backend.optional import ExtendChannel
from syncguard._backend.required import LockBackend
from syncguard._heartbeat.fallback_channel import as_lock_error
from syncguard._heartbeat.schedule import Beat, Schedule
from syncguard._heartbeat.wake_up import WakeUp
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError
from syncguard.types import ExtendResult

_logger = logging.getLogger("syncguard")

IDLE_MS: Final = 5_000
"""How long the thread and a connection stay after the last lock that needed them."""

_CONNECT_MS: Final = (50.0, 5_000.0)
_LEAST_ANSWER_TIMEOUT_MS: Final = 50.0
_READ_AND_WRITE: Final = selectors.EVENT_READ | selectors.EVENT_WRITE


def connect_timeout_ms(waiting: Iterable[Beat[Any]]) -> float:
    """How long connecting may take: until the nearest deadline of the waiting locks."""
    least, most = _CONNECT_MS
    left = min(beat.lost_at_ms for beat in waiting) - holder_clock_ms()
    return min(most, max(least, left))


def answer_timeout_ms(sent: Iterable[Beat[Any]]) -> float:
    """How long an answer may take before the connection is closed."""
    return max(_LEAST_ANSWER_TIMEOUT_MS, min(beat.ttl_ms for beat in sent) / 3)


def server_of(backend: object, lock_id: str) -> Hashable | None:
    """The server of a lock, if its backend has several."""
    # Not isinstance: for a protocol that is slow, and this is asked before each extension.
    find = getattr(backend, "server_of", None)
    return None if find is None else cast("Hashable | None", find(lock_id))


class FailureLog:
    """Logs a failed extension: the first failure only, until one succeeds again."""

    def __init__(self, backend: object) -> None:
        self._backend = backend
        self._is_logged = False

    def report(self, error: Exception) -> None:
        if not self._is_logged:
            self._is_logged = True
            known = as_lock_error(error)
            _logger.warning(
                "Could not extend locks on %r (%s: %s); retrying.", self._backend, known.code, known
            )

    def clear(self) -> None:
        self._is_logged = False


def still_held(
    answer: ExtendResult | LockError,
    beat: Beat[Any],
    sent_at_ms: float,
    schedule: Schedule[Any],
    failure_log: FailureLog,
) -> bool:
    """Record the result of an extension. False: the lock does not exist on the server any more."""
    if isinstance(answer, LockError):
        failure_log.report(answer)
        schedule.failed(beat, holder_clock_ms())
    elif answer.ok:
        failure_log.clear()
        assert answer.expires_at_ms is not None
        schedule.extended(beat, sent_at_ms, answer.expires_at_ms)
    else:
        beat.sending = False
        return False
    return True


class BackendConnection:
    """One backend, or one of its servers: its connection, the beats to send, and those that wait
    for an answer."""

    def __init__(self, backend: LockBackend, server: Hashable | None = None) -> None:
        self.backend = backend
        self.server = server
        """None: the backend has one channel for all locks, or ``extend`` knows the way."""
        self.channel: ExtendChannel | None = None
        self.connecting = False
        self.waiting: list[Beat[BackendConnection]] = []
        self.in_flight: deque[tuple[Beat[BackendConnection], float]] = deque()
        self.is_watched = True
        self.failure_log = FailureLog(backend)
        self.used_at_ms = holder_clock_ms()

    @property
    def idle(self) -> bool:
        unused_ms = holder_clock_ms() - self.used_at_ms
        return not self.is_watched and not self.connecting and unused_ms > IDLE_MS

    def stalls_at_ms(self) -> float | None:
        """When the oldest missing answer will have taken too long."""
        if not self.in_flight:
            return None
        return self.in_flight[0][1] + answer_timeout_ms(beat for beat, _ in self.in_flight)


class WakeableSelector:
    """A selector that ``wake`` interrupts from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_up = WakeUp()
        self._selector.register(self._wake_up, selectors.EVENT_READ)
        self._descriptors: dict[ExtendChannel, int] = {}

    def wake(self) -> None:
        self._wake_up.send()

    def watch(self, channel: ExtendChannel, connection: BackendConnection) -> None:
        descriptor = self._descriptors[channel] = channel.fileno()
        self._selector.register(descriptor, selectors.EVENT_READ, connection)

    def unwatch(self, channel: ExtendChannel) -> None:
        # By the descriptor that was registered: a broken channel may not return it any more, and
        # the process may reuse the number for another file.
        descriptor = self._descriptors.pop(channel, None)
        if descriptor is not None:
            with contextlib.suppress(KeyError, OSError):
                self._selector.unregister(descriptor)

    def wait(self, timeout_s: float) -> list[BackendConnection]:
        """Wait. Returns the connections that can be read, or written where that is wanted."""
        for channel, descriptor in self._descriptors.items():
            key = self._selector.get_key(descriptor)
            events = _READ_AND_WRITE if channel.wants_to_write else selectors.EVENT_READ
            if key.events != events:
                self._selector.modify(descriptor, events, key.data)
        ready = [key.data for key, _ in self._selector.select(timeout_s)]
        if None in ready:
            self._wake_up.clear()
        return [connection for connection in ready if connection is not None]

    def close(self) -> None:
        self._selector.close()
        self._wake_up.close()
