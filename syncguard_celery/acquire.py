"""How a call gets its lock: it adopts the publish-time lock, acquires, or waits.

A free lock costs one round trip. If somebody else holds the lock, ``contention`` decides.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import syncguard
from syncguard import Acquired, Acquisition, Held, Lock, LockBackend, LockError, OnLost, hold
from syncguard.backend import invalid_argument
from syncguard.current import call_on_lost, held_here
from syncguard.key_templates import call_with
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.fence_propagation import record_fence
from syncguard_celery.holder_label import holder_label
from syncguard_celery.hot_key_turns import attempts_of
from syncguard_celery.interrupt_on_loss import NoInterrupt, interrupt_here
from syncguard_celery.message_header import put_back, take_lock
from syncguard_celery.options import UNAVAILABLE_POLICIES, LockOptions, UnavailablePolicy
from syncguard_celery.redelivery import check_earlier_delivery, is_copy
from syncguard_celery.running_calls import Holding, innermost
from syncguard_celery.signals import listening, logger, notify, task_lock_acquired, task_lock_lost
from syncguard_celery.task_call import Call

_ALREADY_HELD = (
    "this code already holds this lock; with reentrant=True, the default, it can enter it again"
)

R = TypeVar("R")


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
        self.call = call
        self.options = options
        self.bind = bind
        self._make_key = make_key
        self.started = time.monotonic()
        self._is_copy = is_copy(call)
        self.backend: LockBackend = backend_of(options, call.app)
        self.lock_id: str | None = None
        """The id of the acquired lock: needed to release it if anything fails after this point."""
        self.block: Lock | None = None
        self.was_contended = attempts_of(call.request) > 0

    def enter(self, contend: Callable[[Acquiring, str], R]) -> Holding | R | None:
        """Acquire the lock; None: run without acquiring a lock.

        If somebody else holds it: what ``contend`` returns (``contention.contend``).
        """
        acquired = self._adopt()
        if acquired is not None:
            self.lock_id = acquired.lock_id
            return self._hold(acquired.key, acquired)
        key = self._make_key(self.bind())
        if key is None or self._is_held_already(key):
            return None
        if self._is_copy:
            check_earlier_delivery(self.call, self.options, self.backend, key)
        holding = self.attempt(key)
        return contend(self, key) if holding is None else holding

    def unavailable_policy(self) -> UnavailablePolicy:
        """What to do in an outage. A callable chooses it from the task's arguments."""
        policy = self.options.on_unavailable
        if not callable(policy):
            return policy
        chosen = call_with(policy, self.bind())
        for known in UNAVAILABLE_POLICIES:
            if chosen == known:
                return known
        raise invalid_argument(f"on_unavailable must return one of {UNAVAILABLE_POLICIES}")

    @property
    def _label(self) -> str:
        call = self.call
        request = call.request
        # A duplicate gets the result of the task in the label, so that result must be stored.
        is_kept = request is None or not request.is_eager or call.app.conf.task_store_eager_result
        return holder_label(call.name, call.task_id if is_kept else None, redelivered=self._is_copy)

    def _adopt(self) -> Acquired | None:
        """The publish-time lock, if this message carries its id and no run has adopted it yet."""
        lock_id = take_lock(self.call.request) if self.call.in_worker else None
        if lock_id is None:
            return None
        try:
            answer = self.backend.adopt(lock_id, self.options.ttl_ms, holder=self._label)
        except BaseException:
            put_back(self.call.request, lock_id)  # for a retry, or to release it
            raise
        return answer if answer.ok else None

    def _is_held_already(self, key: str) -> bool:
        held = held_here(self.backend, key)
        if held is None:
            return False
        if not self.options.reentrant:
            raise invalid_argument(_ALREADY_HELD)
        held.ensure_held()
        return True

    # -- for contention.py --------------------------------------------------------------------

    def attempt(self, key: str) -> Holding | None:
        """Try once. None: somebody else holds the lock."""
        answer = self.backend.acquire(key, self.options.ttl_ms, holder=self._label)
        if not answer.ok:
            return None
        self.lock_id = answer.lock_id
        return self._hold(key, answer)

    def wait(self, key: str, acquisition: Acquisition) -> Holding | None:
        """Wait for the lock. None: somebody else held it for the whole time."""
        try:
            return self._hold(key, acquisition)
        except LockError as error:
            if error.code != "AcquisitionTimeout":
                raise
            return None

    # -- holding ------------------------------------------------------------------------------

    def _hold(self, key: str, how: Acquired | Acquisition) -> Holding:
        options = self.options
        loss = OnLostLock(self.call, options, self.backend, key)
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
            self.call,
            options,
            self.backend,
            key,
            loss.interrupt,
            block,
            held,
            self.started,
            innermost(),
            was_contended=self.was_contended,
        )
        record_fence(self.call.request, key, held.fence)
        level = logging.INFO if self.was_contended else logging.DEBUG
        if listening(task_lock_acquired, level):
            notify(
                task_lock_acquired,
                level,
                "acquired its lock",
                self.call,
                holding.key_hash,
                fence=held.fence,
                waited_ms=holding.waited_ms,
            )
        return holding

    def _waiting_for(self, key: str, acquisition: Acquisition, loss: OnLostLock) -> Lock:
        options = self.options
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
    except Exception as error:
        # Only the class: the text may contain the lock id, which the callback got.
        logger.error("The on_lost callback failed with %s.", type(error).__name__)
