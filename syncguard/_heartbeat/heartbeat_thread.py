"""The thread that extends the locks of blocking code, and the state that only it may touch.

The thread never blocks on a server: it sends what is due, watches all its connections at once,
and declares a lock lost at its deadline even if no server answers. Calls that may block
(connecting, a user's ``on_lost``) run on separate threads.

Holders use only ``registrations`` and ``wake``, and never block: a holder may be a signal handler,
or a generator that the garbage collector closes, in the middle of another holder's call.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from syncguard._backend.optional import (
    ExtendChannel,
    LockMoved,
    OpensExtendChannel,
    SpreadsLocks,
)
from syncguard._backend.required import LockBackend
from syncguard._heartbeat.backend_connection import (
    IDLE_MS,
    BackendConnection,
    WakeableSelector,
    connect_timeout_ms,
    server_of,
    still_held,
)
from syncguard._heartbeat.fallback_channel import (
    FallbackChannel,
    OneRequestChannel,
    as_lock_error,
)
from syncguard._heartbeat.on_lost import announce
from syncguard._heartbeat.schedule import Beat, Schedule
from syncguard._lock.background_threads import run_in_thread
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError, RateLimited

_logger = logging.getLogger("syncguard")

_PAUSE_AFTER_ERROR_S: Final = 0.05


class Watch:
    """A holder's reference to a beat. Dropping it, or setting ``over``, stops the extensions."""

    __slots__ = ("__weakref__", "backend", "beat", "unclaimed")

    def __init__(self, beat: Beat[BackendConnection | None], backend: LockBackend) -> None:
        self.beat = beat
        self.backend = backend
        beat.owner = weakref.ref(self)
        self.unclaimed: list[None] = [None]
        """Popped by the thread that takes this: it may be registered with two threads."""


class HeartbeatThread:
    """One thread. It ends when it was idle for a while; ``on_killed`` is called if it is killed."""

    def __init__(self, on_killed: Callable[[HeartbeatThread], object]) -> None:
        self._on_killed = on_killed
        self.registrations: deque[weakref.ref[Watch]] = deque()
        self.connections: dict[tuple[int, Hashable | None], BackendConnection] = {}
        """By the backend, and its server if it has several."""
        self.has_ended = False
        self.sleeps_until_ms = 0.0
        self._must_stop = False
        self._beats: set[Beat[BackendConnection]] = set()
        """The beats of this thread, for the one that takes over if this one is killed."""
        self._schedule: Schedule[BackendConnection] = Schedule()
        self._connected: deque[tuple[BackendConnection, ExtendChannel | LockError]] = deque()
        self._dropped_idle_at_ms = holder_clock_ms()
        self._selector = WakeableSelector()
        self._thread = threading.Thread(target=self._run, name="syncguard-heartbeat", daemon=True)

    # -- for others ---------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:
            self._must_stop = self.has_ended = True
            if isinstance(error, RuntimeError):  # no thread available
                self._selector.close()
            # Else an interrupt: the thread may have started, and then ends by ``_must_stop``.
            raise

    def take_over(self, ended: HeartbeatThread) -> None:
        """Before ``start``: go on with the locks of a thread that has ended."""
        for beat in ended._beats:
            watch = None if beat.owner is None else beat.owner()
            if isinstance(watch, Watch) and not beat.over:
                beat.sending = False
                beat.due_ms = holder_clock_ms()
                watch.unclaimed = [None]
                self.registrations.append(weakref.ref(watch))
        self.registrations.extend(ended.registrations)

    def wake(self) -> None:
        self._selector.wake()

    def close_inherited_sockets(self) -> None:
        """In a forked child: close the parent's sockets and send nothing."""
        self._selector.close()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._has_work():
                try:
                    self._run_once()
                except Exception:
                    # The thread must go on extending the other locks of this process.
                    _logger.exception("Unexpected error in the heartbeat thread; continuing.")
                    time.sleep(_PAUSE_AFTER_ERROR_S)
        except BaseException as error:
            # SystemExit, or gevent killed this greenlet: whoever did that may wait for its end.
            self.has_ended = True
            for connection in self.connections.values():
                self._disconnect(connection)
            time.sleep(_PAUSE_AFTER_ERROR_S)
            with contextlib.suppress(RuntimeError):  # none available: the next lock tries again
                self._on_killed(self)
            _logger.error("The heartbeat thread was ended by %s.", type(error).__name__)
            if not isinstance(error, SystemExit):
                raise
        finally:
            self._selector.close()

    def _has_work(self) -> bool:
        """Close idle connections. False: nothing is left to do, and the thread ends."""
        self._take_registrations()
        self._drop_idle()
        for key in [
            k for k, connection in self.connections.items() if connection.idle or self._must_stop
        ]:
            self._disconnect(self.connections.pop(key))
        # In this order: a holder that registers now sees has_ended, or this thread sees the
        # registration.
        self.has_ended = not self.connections
        if self.has_ended and self.registrations and not self._must_stop:
            self.has_ended = False
        return not self.has_ended

    def _run_once(self) -> None:
        self._take_due()
        for connection in list(self.connections.values()):
            self._send_waiting(connection)
        self._sleep()
        self._take_new_connections()
        for connection in list(self.connections.values()):
            self._check(connection)

    def _take_registrations(self) -> None:
        while self.registrations:
            watch = self.registrations.popleft()()
            if watch is not None and not watch.beat.over and _claim(watch):
                self._take(watch)

    def _take(self, watch: Watch) -> None:
        beat: Beat[BackendConnection] = watch.beat  # type: ignore[assignment]
        server = server_of(watch.backend, beat.held.lock_id)
        beat.connection = self._connection_of(watch.backend, server)
        self._beats.add(beat)
        self._schedule.add(beat)

    def _connection_of(self, backend: LockBackend, server: Hashable | None) -> BackendConnection:
        key = (id(backend), server)
        connection = self.connections.get(key)
        if connection is None:
            connection = self.connections[key] = BackendConnection(backend, server)
        connection.is_watched = True
        connection.used_at_ms = holder_clock_ms()
        return connection

    def _drop_idle(self) -> None:
        """From time to time, drop the beats of ended blocks: ``unwatch`` only sets a flag."""
        now_ms = holder_clock_ms()
        if not self._must_stop and now_ms - self._dropped_idle_at_ms < IDLE_MS:
            return
        self._dropped_idle_at_ms = now_ms
        self._beats = {beat for beat in self._beats if beat.is_active}
        watched = {id(beat.connection) for beat in self._beats}
        for connection in self.connections.values():
            connection.is_watched = id(connection) in watched
            if connection.is_watched:
                connection.used_at_ms = now_ms

    def _take_due(self) -> None:
        lost, due = self._schedule.take_due(holder_clock_ms())
        for beat in due:
            if beat.is_active:
                self._find_server(beat)
                beat.connection.waiting.append(beat)
        for beat in lost:
            if beat.has_owner:
                announce(beat.held)

    def _find_server(self, beat: Beat[BackendConnection]) -> None:
        """Another server may have the lock by now."""
        backend = beat.connection.backend
        server = server_of(backend, beat.held.lock_id)
        if server != beat.connection.server:
            beat.connection = self._connection_of(backend, server)

    def _send_waiting(self, connection: BackendConnection) -> None:
        """Send the waiting beats, or connect first if there is no connection."""
        for beat in connection.waiting:
            beat.sending = not beat.over  # not sent if over: ``settle`` need not wait
        connection.waiting = [beat for beat in connection.waiting if beat.sending]
        if not connection.waiting:
            return
        if connection.channel is None:
            if not connection.connecting:
                self._connect(connection)
            return
        beats, connection.waiting = connection.waiting, []
        now_ms = connection.used_at_ms = holder_clock_ms()
        connection.in_flight.extend((beat, now_ms) for beat in beats)
        try:
            connection.channel.send([(beat.held.lock_id, beat.ttl_ms) for beat in beats])
        except Exception as error:
            self._fail(connection, error)

    def _sleep(self) -> None:
        now_ms = holder_clock_ms()
        # No longer than this: to close idle connections, and to notice a suspended machine.
        wakes = [now_ms + IDLE_MS]
        wakes += [
            at for connection in self.connections.values() if (at := connection.stalls_at_ms())
        ]
        next_ms = self._schedule.next_ms()
        if next_ms is not None:
            wakes.append(next_ms)
        wake_ms = self.sleeps_until_ms = min(wakes)
        # sleeps_until_ms is set first: a holder that registers after this check calls wake().
        if self.registrations:
            wake_ms = now_ms
        for connection in self._selector.wait(max(0.0, wake_ms - now_ms) / 1000):
            self._receive(connection)

    def _receive(self, connection: BackendConnection) -> None:
        assert connection.channel is not None
        try:
            answers = connection.channel.receive()
        except Exception as error:
            self._fail(connection, error)
            return
        for answer in answers:
            beat, sent_at_ms = connection.in_flight.popleft()
            if isinstance(answer, LockMoved) and connection.server is not None:
                # Once by ``extend``, on another thread. The next time its server may be known.
                beat.connection = self._connection_of(connection.backend, None)
                beat.connection.waiting.append(beat)
                continue
            known = still_held(answer, beat, sent_at_ms, self._schedule, connection.failure_log)
            if not known and beat.is_active:
                beat.over = True
                announce(beat.held)
        if isinstance(connection.channel, OneRequestChannel) and not connection.in_flight:
            self._disconnect(connection)

    def _check(self, connection: BackendConnection) -> None:
        stalls_at_ms = connection.stalls_at_ms()
        if stalls_at_ms is not None and stalls_at_ms <= holder_clock_ms():
            self._fail(connection, LockError("NetworkTimeout"))

    def _fail(self, connection: BackendConnection, error: Exception) -> None:
        """Close a broken connection, and reschedule the beats that got no answer."""
        if connection.in_flight:
            connection.failure_log.report(error)
        self._disconnect(connection)
        unanswered, connection.in_flight = connection.in_flight, deque()
        for beat, _ in unanswered:
            self._schedule.failed(beat, holder_clock_ms())

    def _disconnect(self, connection: BackendConnection) -> None:
        channel, connection.channel = connection.channel, None
        if channel is not None:
            self._selector.unwatch(channel)
            with contextlib.suppress(Exception):
                channel.close()

    # -- connecting ---------------------------------------------------------------------------

    def _connect(self, connection: BackendConnection) -> None:
        connection.connecting = True
        try:
            # Not Thread.start(): killed inside of it, this thread would wait for ever (ADR-047).
            run_in_thread(partial(self._open, connection, connect_timeout_ms(connection.waiting)))
        except RuntimeError as error:  # no thread available: retry later
            self._connected.append((connection, as_lock_error(error)))
            self.wake()

    def _open(self, connection: BackendConnection, timeout_ms: float) -> None:
        outcome: ExtendChannel | LockError = LockError("Internal")  # if this thread is killed
        try:
            backend, server = connection.backend, connection.server
            channel: ExtendChannel | None = None
            if server is not None and isinstance(backend, SpreadsLocks):
                channel = backend.open_server_channel(server, timeout_ms)
            elif isinstance(backend, OpensExtendChannel):
                channel = backend.open_extend_channel(timeout_ms)
            outcome = FallbackChannel(backend) if channel is None else channel
        except RateLimited:
            outcome = OneRequestChannel(backend)
        except Exception as error:
            outcome = as_lock_error(error)
        except SystemExit:
            pass  # the thread goes on with its other jobs
        finally:
            self._connected.append((connection, outcome))
            self.wake()
            if self.has_ended:  # killed meanwhile: nothing else closes the connection
                self._close_new_connections()

    def _close_new_connections(self) -> None:
        while self._connected:
            _, outcome = self._connected.popleft()
            if not isinstance(outcome, LockError):
                outcome.close()

    def _take_new_connections(self) -> None:
        while self._connected:
            connection, outcome = self._connected.popleft()
            connection.connecting = False
            if not isinstance(outcome, LockError):
                connection.channel = outcome
                self._selector.watch(outcome, connection)
                continue
            connection.failure_log.report(outcome)
            beats, connection.waiting = connection.waiting, []
            for beat in beats:
                self._schedule.failed(beat, holder_clock_ms())


def _claim(watch: Watch) -> bool:
    try:
        watch.unclaimed.pop()
    except IndexError:
        return False
    return True
