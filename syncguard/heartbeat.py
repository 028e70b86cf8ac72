"""Auto-extend for blocking code: one thread per process, whatever the number of locks and backends.

The thread never blocks on a server: it sends what is due, watches all its connections at once,
and gives a lock up at its deadline even if no server answers. Whatever may block (connecting, a
user's ``on_lost``) runs on a thread of its own for as long as it takes. After a fork the child
starts with nothing: the locks it inherited are its parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import Final

from syncguard.backend import ExtendChannel, LockBackend
from syncguard.clock import holder_clock_ms
from syncguard.errors import LockError
from syncguard.extending import CallingChannel, as_lock_error
from syncguard.held import Held
from syncguard.lanes import IDLE_MS, Lane, Post, connect_timeout_ms
from syncguard.losing import announce
from syncguard.schedule import Beat, Schedule

_logger = logging.getLogger("syncguard")

_AFTER_A_BUG_S: Final = 0.05
_LONGEST_SLEEP_MS: Final = 60_000.0
"""A selector refuses to sleep for weeks; and so a suspended machine is noticed within a minute."""


class Heartbeat:
    """The scheduler. Use the module's ``watch`` and ``unwatch``."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # the schedule, the thread and the lanes' dictionary
        self._schedule: Schedule[Lane] = Schedule()
        self._lanes: dict[int, Lane] = {}
        self._connected: deque[tuple[Lane, ExtendChannel | LockError]] = deque()
        self._thread: threading.Thread | None = None
        self._post: Post | None = None
        self._sleeps_until_ms = 0.0
        self._stopping = False

    # -- called by holders --------------------------------------------------------------------

    def watch(
        self,
        held: Held,
        backend: LockBackend,
        ttl_ms: int,
        *,
        renews: bool,
        max_hold_ms: int | None,
    ) -> Beat[Lane]:
        sent_at_ms = held.deadline_ms - ttl_ms
        with self._guard:
            lane = self._lanes.get(id(backend))
            if lane is None:
                lane = self._lanes[id(backend)] = Lane(backend)
            lane.watched += 1
            lane.used_at_ms = holder_clock_ms()
            beat = self._schedule.add(
                held, lane, ttl_ms, sent_at_ms, renews=renews, max_hold_ms=max_hold_ms
            )
            try:
                self._ensure_running()
            except BaseException:  # no thread, no socket to be had: then nobody watches this lock
                self._drop(beat)
                raise
            if beat.when_ms < self._sleeps_until_ms:
                self._ring()
        return beat

    def unwatch(self, beat: Beat[Lane]) -> None:
        with self._guard:
            self._drop(beat)

    def _ensure_running(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        post = Post()
        thread = threading.Thread(
            target=self._run, args=(post,), name="syncguard-heartbeat", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            post.close()
            raise
        self._thread, self._post = thread, post

    def _drop(self, beat: Beat[Lane]) -> None:
        if not beat.over:
            self._schedule.remove(beat)
            beat.lane.watched -= 1

    def stop(self) -> None:
        """End the thread and close what it has open: the process is ending."""
        self._stopping = True
        thread = self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1)

    def forget(self) -> None:
        """In a forked child: let go of the parent's sockets without a word to anybody."""
        if self._post is not None:
            self._post.close()

    def _ring(self) -> None:
        post = self._post
        if post is not None:
            post.ring()

    # -- the thread ---------------------------------------------------------------------------

    def _run(self, post: Post) -> None:
        while self._has_work(post):
            try:
                self._turn(post)
            except Exception:
                # Whatever it was, the other locks of this process must not die of it.
                _logger.exception("the heartbeat met an unexpected error, and goes on")
                time.sleep(_AFTER_A_BUG_S)
        post.close()

    def _turn(self, post: Post) -> None:
        self._give_up_and_collect()
        for lane in self._lanes_now():
            self._pump(lane)
        self._sleep(post)
        self._take_new_connections(post)
        for lane in self._lanes_now():
            self._check(lane)

    def _lanes_now(self) -> list[Lane]:
        with self._guard:
            return list(self._lanes.values())

    def _has_work(self, post: Post) -> bool:
        """Sweep what is idle. False: so are we, and the thread ends."""
        with self._guard:
            if self._post is not post:
                return False  # started by a call that was interrupted: another has our place
            for key in [k for k, lane in self._lanes.items() if lane.idle or self._stopping]:
                self._hang_up(self._lanes.pop(key))
            if not self._lanes:
                self._thread = self._post = None
            return bool(self._lanes)

    def _give_up_and_collect(self) -> None:
        with self._guard:
            lost, due = self._schedule.take_due(holder_clock_ms())
            for beat in lost:
                self._drop(beat)
        for beat in due:
            beat.lane.waiting.append(beat)
        for beat in lost:
            announce(beat.held)

    def _pump(self, lane: Lane) -> None:
        """Send what waits; connect first where there is no connection."""
        lane.waiting = [beat for beat in lane.waiting if not beat.over]
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

    def _sleep(self, post: Post) -> None:
        with self._guard:
            next_ms = self._schedule.next_ms()
            wakes = [next_ms] if next_ms is not None else []
            wakes += [at for lane in self._lanes.values() if (at := lane.stalls_at_ms())]
            now_ms = holder_clock_ms()
            wake_ms = min(wakes, default=now_ms + IDLE_MS)
            self._sleeps_until_ms = wake_ms
        for lane in post.wait(min(max(0.0, wake_ms - now_ms), _LONGEST_SLEEP_MS) / 1000):
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
            with self._guard:
                if beat.over:
                    continue
                if isinstance(answer, LockError):
                    lane.complaint.make(answer)
                    self._schedule.failed(beat, holder_clock_ms())
                elif answer.ok:
                    lane.complaint.withdraw()
                    assert answer.expires_at_ms is not None
                    self._schedule.extended(beat, sent_at_ms, answer.expires_at_ms)
                else:
                    self._drop(beat)
            if beat.over:
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
        with self._guard:
            for beat, _ in owed:
                self._schedule.failed(beat, holder_clock_ms())

    def _hang_up(self, lane: Lane) -> None:
        channel, lane.channel = lane.channel, None
        if channel is not None:
            if self._post is not None:
                self._post.unwatch(channel)
            with contextlib.suppress(Exception):
                channel.close()

    # -- connecting ---------------------------------------------------------------------------

    def _connect(self, lane: Lane) -> None:
        timeout_ms = connect_timeout_ms(lane.waiting)
        threading.Thread(
            target=self._open, args=(lane, timeout_ms), name="syncguard-connect", daemon=True
        ).start()
        lane.connecting = True

    def _open(self, lane: Lane, timeout_ms: float) -> None:
        try:
            opener = getattr(lane.backend, "open_extend_channel", None)
            channel = opener(timeout_ms) if opener is not None else None
            outcome = CallingChannel(lane.backend) if channel is None else channel
        except Exception as error:
            outcome = as_lock_error(error)
        self._connected.append((lane, outcome))
        self._ring()

    def _take_new_connections(self, post: Post) -> None:
        while self._connected:
            lane, outcome = self._connected.popleft()
            lane.connecting = False
            if not isinstance(outcome, LockError):
                lane.channel = outcome
                post.watch(outcome, lane)
                continue
            lane.complaint.make(outcome)
            beats, lane.waiting = lane.waiting, []
            with self._guard:
                for beat in beats:
                    self._schedule.failed(beat, holder_clock_ms())


_heartbeat = Heartbeat()


def watch(
    held: Held,
    backend: LockBackend,
    ttl_ms: int,
    *,
    renews: bool = True,
    max_hold_ms: int | None = None,
) -> Beat[Lane]:
    """Extend a lock until ``unwatch``; ``renews=False`` only tells when it is lost."""
    return _heartbeat.watch(held, backend, ttl_ms, renews=renews, max_hold_ms=max_hold_ms)


def unwatch(beat: Beat[Lane]) -> None:
    """Stop extending. An extension that is under way can do no harm: it never resurrects."""
    _heartbeat.unwatch(beat)


def _start_afresh() -> None:
    global _heartbeat
    inherited, _heartbeat = _heartbeat, Heartbeat()
    inherited.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
atexit.register(lambda: _heartbeat.stop())
