"""How a call gets its lock: adopt, acquire, wait, or apply the contention policy.

A free lock costs one round trip. If the lock is held, the call first looks up the holder.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import syncguard
from syncguard import Acquired, Acquisition, Held, Lock, LockBackend, LockError, OnLost, hold
from syncguard.backend import invalid_argument
from syncguard.current import call_on_lost, held_here
from syncguard.key_templates import call_with
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.contention import (
    LOOKUP_ATTEMPTS,
    LockContended,
    acquisition_within,
    contended,
    left_ms,
    republish,
)
from syncguard_celery.fence_propagation import record_fence
from syncguard_celery.holder_label import holder_label
from syncguard_celery.hot_key_turns import SLOT_WAIT_MS, attempts_of, next_turn, waiting_turn
from syncguard_celery.interrupt_on_loss import NoInterrupt, interrupt_here
from syncguard_celery.message_header import fences_in, header_of, key_digest, put_back, take_lock
from syncguard_celery.options import (
    POLICIES,
    UNAVAILABLE_POLICIES,
    LockOptions,
    Policy,
    UnavailablePolicy,
)
from syncguard_celery.outage import is_unanswered_attempt, republish_after_unanswered
from syncguard_celery.redelivery import (
    check_earlier_delivery,
    is_copy,
    is_own_delivery,
    republish_copy,
)
from syncguard_celery.running_calls import Holding, innermost, waited_ms
from syncguard_celery.signals import (
    listening,
    logger,
    notify,
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
)
from syncguard_celery.task_call import Call

_ALREADY_HELD = (
    "this code already holds this lock; with reentrant=True, the default, it can enter it again"
)
_PREDECESSOR_WAIT_MS = 5_000
"""How long to wait for the previous run of this task before looking up the holder again."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The task does not run; this is its result."""

    result: object


class OnLostLock:
    """Called when the lock is lost, by the heartbeat, on a separate thread.

    It has no reference to the ``Acquiring`` that made it: the two would be a reference cycle,
    which only the garbage collector frees.
    """

    def __init__(self, call: Call, options: LockOptions, backend: LockBackend, key: str) -> None:
        self._call = call
        self._on_lost = options.on_lost
        self._backend = backend
        self._key = key
        self._since = time.monotonic()
        interrupts = options.on_lost in ("raise", "retry")
        self.interrupt = interrupt_here() if interrupts else NoInterrupt()

    def __call__(self, held: Held) -> None:
        self.interrupt.fire()
        held_ms = (time.monotonic() - self._since) * 1000
        notify(
            task_lock_lost,
            logging.ERROR,
            "lost its lock",
            self._call,
            lambda: self._backend.hash(self._key),
            fence=held.fence,
            held_ms=held_ms,
        )
        if callable(self._on_lost):
            _call_on_lost(self._on_lost, held)


class Acquiring:
    """One call that is acquiring its lock."""

    def __init__(
        self,
        call: Call,
        options: LockOptions,
        bind: Callable[[], inspect.BoundArguments],
        make_key: Callable[[inspect.BoundArguments], str | None],
    ) -> None:
        self._call = call
        self._options = options
        self._bind = bind
        self._make_key = make_key
        self._started = time.monotonic()
        self._is_copy = is_copy(call)
        self.backend: LockBackend = backend_of(options, call.app)
        self.lock_id: str | None = None
        """The id of the acquired lock: needed to release it if anything fails after this point."""
        self.block: Lock | None = None
        self._was_contended = attempts_of(call.request) > 0

    def enter(self) -> Holding | Skipped | None:
        """The lock; or ``Skipped``; or None: run without acquiring a lock."""
        acquired = self._adopt()
        if acquired is not None:
            self.lock_id = acquired.lock_id
            return self._hold(acquired.key, acquired)
        key = self._make_key(self._bind())
        if key is None or self._is_held_already(key):
            return None
        if self._is_copy:
            check_earlier_delivery(self._call, self._options, self.backend, key)
        answer = self.backend.acquire(key, self._options.ttl_ms, holder=self._label)
        if answer.ok:
            self.lock_id = answer.lock_id
            return self._hold(key, answer)
        return self._contend(key)

    def unavailable_policy(self) -> UnavailablePolicy:
        """What to do in an outage. A callable chooses it from the task's arguments."""
        policy = self._options.on_unavailable
        if not callable(policy):
            return policy
        chosen = call_with(policy, self._bind())
        for known in UNAVAILABLE_POLICIES:
            if chosen == known:
                return known
        raise invalid_argument(f"on_unavailable must return one of {UNAVAILABLE_POLICIES}")

    @property
    def _label(self) -> str:
        call = self._call
        request = call.request
        # A duplicate gets the result of the task in the label, so that result must be stored.
        is_kept = request is None or not request.is_eager or call.app.conf.task_store_eager_result
        return holder_label(call.name, call.task_id if is_kept else None, redelivered=self._is_copy)

    def _adopt(self) -> Acquired | None:
        """The publish-time lock, if this message carries its id and no run has adopted it yet."""
        lock_id = take_lock(self._call.request) if self._call.in_worker else None
        if lock_id is None:
            return None
        try:
            answer = self.backend.adopt(lock_id, self._options.ttl_ms, holder=self._label)
        except BaseException:
            put_back(self._call.request, lock_id)  # for a retry, or to release it
            raise
        return answer if answer.ok else None

    def _is_held_already(self, key: str) -> bool:
        held = held_here(self.backend, key)
        if held is None:
            return False
        if not self._options.reentrant:
            raise invalid_argument(_ALREADY_HELD)
        held.ensure_held()
        return True

    # -- contention ---------------------------------------------------------------------------

    def _contend(self, key: str) -> Holding | Skipped:
        call, options = self._call, self._options
        predecessor = fences_in(header_of(call.request), "after").get(key_digest(key))
        for _ in range(LOOKUP_ATTEMPTS):
            info = self.backend.lookup(key=key)
            if info is None:
                # It was released between the attempt and the lookup: that is not contention.
                answer = self.backend.acquire(key, options.ttl_ms, holder=self._label)
                if answer.ok:
                    self.lock_id = answer.lock_id
                    return self._hold(key, answer)
            elif info.fence == predecessor:
                # The previous run of this task is still releasing it: that is not contention.
                return self._wait_for_predecessor(key, predecessor)
            elif is_own_delivery(call, info):
                raise republish_copy(call, options, key, info)
            elif is_unanswered_attempt(call, info):
                raise republish_after_unanswered(call, options, info)
            else:
                break
        left = left_ms(call, options.contention_timeout_ms)
        error = contended(self.backend, key, info)
        try:
            policy = self._policy()
            self._notify_contended(key, error, policy)
            if policy == "skip":
                return Skipped(options.skip_result)
            if policy == "fail":
                raise error
            if policy == "retry" and call.in_worker:
                if left is not None and left <= 0:
                    raise error
                return self._wait_or_republish(key, error, left)
        finally:
            del error  # a cycle: the traceback holds this frame
        acquisition = Acquisition() if left is None else acquisition_within(max(1, round(left)))
        holding = self._wait(key, acquisition)
        if holding is None:
            raise contended(self.backend, key, self.backend.lookup(key=key))
        return holding

    def _wait_or_republish(self, key: str, error: LockContended, left: float | None) -> Holding:
        """Wait in the slot if it is this task's turn; else publish it again and raise Retry."""
        call, backend, contended_at = self._call, self.backend, time.monotonic()
        turn = next_turn(backend, key, call.request, left, waits=True)
        if turn.ticket is not None:
            wait_ms = SLOT_WAIT_MS if left is None else max(1, min(SLOT_WAIT_MS, round(left)))
            with waiting_turn(backend, key, turn.ticket):
                holding = self._wait(key, acquisition_within(wait_ms))
            if holding is not None:
                return holding
            if left is not None:
                left -= (time.monotonic() - contended_at) * 1000
                if left <= 0:
                    raise contended(backend, key, backend.lookup(key=key))
            turn = next_turn(backend, key, call.request, left, waits=False)
        raise republish(call, error, turn, (time.monotonic() - contended_at) * 1000)

    def _wait_for_predecessor(self, key: str, predecessor: str) -> Holding | Skipped:
        while (holding := self._wait(key, acquisition_within(_PREDECESSOR_WAIT_MS))) is None:
            info = self.backend.lookup(key=key)
            if info is not None and info.fence != predecessor:
                return self._contend(key)  # another call acquired it first
        return holding

    def _policy(self) -> Policy:
        policy = self._options.on_contention
        if not callable(policy):
            return policy
        chosen = call_with(policy, self._bind())
        for known in POLICIES:
            if chosen == known:
                return known
        raise invalid_argument(f"on_contention must return one of {POLICIES}")

    def _notify_contended(self, key: str, error: LockContended, policy: Policy) -> None:
        self._was_contended = True
        notify(
            task_lock_contended,
            # At INFO once for each task, however often it is published again.
            logging.DEBUG if attempts_of(self._call.request) else logging.INFO,
            f"found its lock held by somebody else: {policy}",
            self._call,
            lambda: error.key_hash or self.backend.hash(key),
            fence=error.fence,
            waited_ms=waited_ms(self._call, self._started, time.monotonic()),
            policy=policy,
        )

    def _wait(self, key: str, acquisition: Acquisition) -> Holding | None:
        try:
            return self._hold(key, acquisition)
        except LockError as error:
            if error.code != "AcquisitionTimeout":
                raise
            return None

    # -- holding ------------------------------------------------------------------------------

    def _hold(self, key: str, how: Acquired | Acquisition) -> Holding:
        options = self._options
        loss = OnLostLock(self._call, options, self.backend, key)
        if isinstance(how, Acquired):
            block = hold(
                self.backend,
                how,
                auto_extend=options.auto_extend,
                max_hold_ms=options.max_hold_ms,
                on_lost=loss,
            )
        else:
            block = self._waiting_for(key, how, loss)
        self.block = block
        held = block.__enter__()
        self.lock_id = held.lock_id
        holding = Holding(
            self._call,
            options,
            self.backend,
            key,
            loss.interrupt,
            block,
            held,
            self._started,
            innermost(),
            was_contended=self._was_contended,
        )
        record_fence(self._call.request, key, held.fence)
        level = logging.INFO if self._was_contended else logging.DEBUG
        if listening(task_lock_acquired, level):
            notify(
                task_lock_acquired,
                level,
                "acquired its lock",
                self._call,
                holding.key_hash,
                fence=held.fence,
                waited_ms=holding.waited_ms,
            )
        return holding

    def _waiting_for(self, key: str, acquisition: Acquisition, loss: OnLostLock) -> Lock:
        options = self._options
        return syncguard.lock(
            self.backend,
            key,
            options.ttl_ms,
            acquisition=acquisition,
            auto_extend=options.auto_extend,
            max_hold_ms=options.max_hold_ms,
            holder=self._label,
            on_lost=loss,
        )


def _call_on_lost(on_lost: OnLost, held: Held) -> None:
    try:
        call_on_lost(on_lost, held)
    except Exception:
        logger.exception("the on_lost callback failed")
