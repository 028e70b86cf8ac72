"""The thread that extends the locks of blocking code, and everything that only it may touch.

The thread never blocks on a server: it sends what is due, watches all its connections at once,
and gives a lock up at its deadline even if no server answers. Whatever may block (connecting, a
user's ``on_lost``) runs on a thread of its own for as long as it takes.

Holders reach it by ``arrivals`` and ``ring`` alone, and wait for nothing: a holder may be a signal
handler, or a generator that the garbage collector closes, in the middle of another holder's call.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from typing import Final

from syncguard._backend.optional import ExtendChannel, OpensExtendChannel
from syncguard._backend.required import LockBackend
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError
from syncguard.extending import CallingChannel, as_lock_error
from syncguard.lanes import IDLE_MS, Lane, Post, connect_timeout_ms, still_held
from syncguard.losing import announce
from syncguard.schedule import Beat, Schedule

_logger = logging.getLogger("syncguard")

_AFTER_A_BUG_S: Final = 0.05


class Watch:
    """A holder's end of a beat: its lock is extended as long as this lives and is not over."""

    __slots__ = ("__weakref__", "backend", "beat", "unclaimed")

    def __init__(self, beat: Beat[Lane | None], backend: LockBackend) -> None:
        self.beat = beat
        self.backend = backend
        self.unclaimed: list[None] = [None]
        """Popped by the thread that takes it: two may have been offered it."""


class HeartbeatThread:
    """One thread, from its first lock until it was idle for a while."""

    def __init__(self) -> None:
        self.arrivals: deque[weakref.ref[Watch]] = deque()
        self.lanes: dict[int, Lane] = {}
        self.has_ended = False
        self.sleeps_until_ms = 0.0
        self._is_unwanted = False
        self._schedule: Schedule[Lane] = Schedule()
        self._owners: dict[Beat[Lane], weakref.ref[Watch]] = {}
        self._connected: deque[tuple[Lane, ExtendChannel | LockError]] = deque()
        self._swept_at_ms = holder_clock_ms()
        self._post = Post()
        self._thread = threading.Thread(target=self._run, name="syncguard-heartbeat", daemon=True)

    # -- for others ---------------------------------------------------------------------------

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:
            self._is_unwanted = self.has_ended = True
            if isinstance(error, RuntimeError):  # no more threads to be had
                self._post.close()
            # Else an interrupt: it may have started, and will see that it is not wanted.
            raise

    def ring(self) -> None:
        self._post.ring()

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets without a word to anybody."""
        self._post.close()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while self._has_work():
            try:
                self._turn()
            except Exception:
                # Whatever it was, the other locks of this process must not die of it.
                _logger.exception("the heartbeat met an unexpected error, and goes on")
                time.sleep(_AFTER_A_BUG_S)
        self._post.close()

    def _has_work(self) -> bool:
        """Sweep what is idle. False: so are we, and the thread ends."""
        self._welcome()
        self._sweep()
        for key in [k for k, lane in self.lanes.items() if lane.idle or self._is_unwanted]:
            self._hang_up(self.lanes.pop(key))
        # In this order: whoever arrives now finds that we have ended, or is found by us.
        self.has_ended = not self.lanes
        if self.has_ended and self.arrivals and not self._is_unwanted:
            self.has_ended = False
        return not self.has_ended

    def _turn(self) -> None:
        self._give_up_and_collect()
        for lane in list(self.lanes.values()):
            self._pump(lane)
        self._sleep()
        self._take_new_connections()
        for lane in list(self.lanes.values()):
            self._check(lane)

    def _welcome(self) -> None:
        while self.arrivals:
            owner = self.arrivals.popleft()
            watch = owner()
            if watch is not None and not watch.beat.over and _claim(watch):
                self._take(watch, owner)

    def _take(self, watch: Watch, owner: weakref.ref[Watch]) -> None:
        lane = self.lanes.get(id(watch.backend))
        if lane is None:
            lane = self.lanes[id(watch.backend)] = Lane(watch.backend)
        lane.is_watched = True
        lane.used_at_ms = holder_clock_ms()
        beat: Beat[Lane] = watch.beat  # type: ignore[assignment]
        beat.lane = lane
        self._owners[beat] = owner
        self._schedule.add(beat)

    def _sweep(self) -> None:
        """Now and then, find out who has gone: leaving holders tell nobody."""
        now_ms = holder_clock_ms()
        if not self._is_unwanted and now_ms - self._swept_at_ms < IDLE_MS:
            return
        self._swept_at_ms = now_ms
        beats = [beat for beat in self._schedule.beats() if self._is_wanted(beat)]
        self._owners = {beat: self._owners[beat] for beat in beats}
        watched = {id(beat.lane) for beat in beats}
        for lane in self.lanes.values():
            lane.is_watched = id(lane) in watched
            if lane.is_watched:
                lane.used_at_ms = now_ms

    def _is_wanted(self, beat: Beat[Lane]) -> bool:
        """Whether its holder is still there. One that an interrupt cut off says no farewell."""
        if not beat.over and self._owners[beat]() is None:
            beat.over = True
        return not beat.over

    def _give_up_and_collect(self) -> None:
        lost, due = self._schedule.take_due(holder_clock_ms())
        for beat in due:
            if self._is_wanted(beat):
                beat.lane.waiting.append(beat)
        for beat in lost:
            if self._owners[beat]() is not None:
                announce(beat.held)

    def _pump(self, lane: Lane) -> None:
        """Send what waits; connect first where there is no connection."""
        for beat in lane.waiting:
            beat.sending = not beat.over  # nobody need wait for what will not be sent
        lane.waiting = [beat for beat in lane.waiting if beat.sending]
        if not lane.waiting:
            return
        if lane.channel is None:
            if not lane.connecting:
                self._connect(lane)
            return
        beats, lane.waiting = lane.waiting, []
        now_ms = lane.used_at_ms = holder_clock_ms()
        lane.in_flight.extend((beat, now_ms) for beat in beats)
        try:
            lane.channel.send([(beat.held.lock_id, beat.ttl_ms) for beat in beats])
        except Exception as error:
            self._fail(lane, error)

    def _sleep(self) -> None:
        now_ms = holder_clock_ms()
        # Not longer, though nothing is due: to sweep, and to notice a suspended machine.
        wakes = [now_ms + IDLE_MS]
        wakes += [at for lane in self.lanes.values() if (at := lane.stalls_at_ms())]
        next_ms = self._schedule.next_ms()
        if next_ms is not None:
            wakes.append(next_ms)
        wake_ms = self.sleeps_until_ms = min(wakes)
        # Said before we look: who comes after this look will ring.
        if self.arrivals:
            wake_ms = now_ms
        for lane in self._post.wait(max(0.0, wake_ms - now_ms) / 1000):
            self._receive(lane)

    def _receive(self, lane: Lane) -> None:
        assert lane.channel is not None
        try:
            answers = lane.channel.receive()
        except Exception as error:
            self._fail(lane, error)
            return
        for answer in answers:
            beat, sent_at_ms = lane.in_flight.popleft()
            known = still_held(answer, beat, sent_at_ms, self._schedule, lane.complaint)
            if not known and self._is_wanted(beat):
                beat.over = True
                announce(beat.held)

    def _check(self, lane: Lane) -> None:
        stalls_at_ms = lane.stalls_at_ms()
        if stalls_at_ms is not None and stalls_at_ms <= holder_clock_ms():
            self._fail(lane, LockError("NetworkTimeout"))

    def _fail(self, lane: Lane, error: Exception) -> None:
        """The connection is no good: forget it, and what it still owed us."""
        if lane.in_flight:
            lane.complaint.make(error)
        self._hang_up(lane)
        owed, lane.in_flight = lane.in_flight, deque()
        for beat, _ in owed:
            self._schedule.failed(beat, holder_clock_ms())

    def _hang_up(self, lane: Lane) -> None:
        channel, lane.channel = lane.channel, None
        if channel is not None:
            self._post.unwatch(channel)
            with contextlib.suppress(Exception):
                channel.close()

    # -- connecting ---------------------------------------------------------------------------

    def _connect(self, lane: Lane) -> None:
        timeout_ms = connect_timeout_ms(lane.waiting)
        thread = threading.Thread(
            target=self._open, args=(lane, timeout_ms), name="syncguard-connect", daemon=True
        )
        lane.connecting = True
        try:
            thread.start()
        except RuntimeError as error:  # no more threads to be had: perhaps later
            self._connected.append((lane, as_lock_error(error)))
            self.ring()

    def _open(self, lane: Lane, timeout_ms: float) -> None:
        try:
            channel: ExtendChannel | None = None
            if isinstance(lane.backend, OpensExtendChannel):
                channel = lane.backend.open_extend_channel(timeout_ms)
            outcome: ExtendChannel | LockError = (
                CallingChannel(lane.backend) if channel is None else channel
            )
        except Exception as error:
            outcome = as_lock_error(error)
        self._connected.append((lane, outcome))
        self.ring()

    def _take_new_connections(self) -> None:
        while self._connected:
            lane, outcome = self._connected.popleft()
            lane.connecting = False
            if not isinstance(outcome, LockError):
                lane.channel = outcome
                self._post.watch(outcome, lane)
                continue
            lane.complaint.make(outcome)
            beats, lane.waiting = lane.waiting, []
            for beat in beats:
                self._schedule.failed(beat, holder_clock_ms())


def _claim(watch: Watch) -> bool:
    try:
        watch.unclaimed.pop()
    except IndexError:
        return False
    return True
