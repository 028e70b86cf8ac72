"""Somebody else holds the lock: what the call does then, and ``LockContended``.

``contend`` is the one place that follows ``on_contention``: skip, fail, retry or wait. When a task
tries again is decided in ``hot_key_turns``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, Final

from celery.exceptions import Retry

from syncguard import Acquisition, AcquisitionTimeout, ErrorContext, LockBackend, LockInfo, Turn
from syncguard.backend import invalid_argument
from syncguard.key_templates import call_with
from syncguard_celery.acquire import Acquiring
from syncguard_celery.fence_propagation import attaching
from syncguard_celery.hot_key_turns import SLOT_WAIT_MS, attempts_of, next_turn, waiting_turn
from syncguard_celery.message_header import contended_since_ms, fences_in, header_of, key_digest
from syncguard_celery.options import POLICIES, Policy
from syncguard_celery.outage import is_unanswered_attempt, republish_after_unanswered
from syncguard_celery.redelivery import copy_mark, is_own_delivery, republish_copy
from syncguard_celery.running_calls import Holding, waited_ms
from syncguard_celery.signals import notify, task_lock_contended
from syncguard_celery.task_call import Call
from syncguard_celery.visibility_timeout import below_visibility_timeout

LOOKUP_ATTEMPTS: Final = 5
"""How often the lock may be released between an attempt and a lookup before that is contention."""

POLL_MS: Final = 500
"""A release wakes a waiter. Polling is for holders that wake nobody or that died."""


_PREDECESSOR_WAIT_MS: Final = 5_000
"""How long to wait for the previous run of this task before looking up the holder again."""


class LockContended(AcquisitionTimeout):
    """Another holder had the lock for as long as the task tried to acquire it.

    ``args`` are the constructor's arguments, because result stores rebuild an error from them.
    """

    def __init__(
        self,
        message: str = "the lock is held by somebody else",
        key_hash: str | None = None,
        fence: str | None = None,
        remaining_ms: int | None = None,
        context: ErrorContext | None = None,
    ) -> None:
        super().__init__(message, context)
        self.args = (message, key_hash, fence, remaining_ms)
        self.key_hash = key_hash
        self.fence = fence
        self.remaining_ms = remaining_ms

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)


def contended(backend: LockBackend, key: str, info: LockInfo | None) -> LockContended:
    """The error for this key, with what is known about its holder."""
    if info is None:  # released meanwhile
        return LockContended(key_hash=backend.hash(key), context=ErrorContext(key=key))
    remaining_ms = max(0, info.expires_at_ms - round(time.time() * 1000))
    return LockContended(
        f"the lock is held by somebody else, for {remaining_ms} ms more unless it is extended",
        info.key_hash,
        info.fence,
        remaining_ms,
        ErrorContext(key=key),
    )


@dataclass(frozen=True, slots=True)
class Skipped:
    """The task does not run; this is its result."""

    result: object


def contend(acquiring: Acquiring, key: str) -> Holding | Skipped:
    """What a call does whose first attempt was refused. Raises LockContended, Retry, Ignore."""
    call, options, backend = acquiring.call, acquiring.options, acquiring.backend
    predecessor = fences_in(header_of(call.request), "after").get(key_digest(key))
    for _ in range(LOOKUP_ATTEMPTS):
        info = backend.lookup(key=key)
        if info is None:
            # It was released between the attempt and the lookup: that is not contention.
            holding = acquiring.attempt(key)
            if holding is not None:
                return holding
        elif info.fence == predecessor:
            # The previous run of this task is still releasing it: that is not contention.
            return _wait_for_predecessor(acquiring, key, predecessor)
        elif is_own_delivery(call, info):
            raise republish_copy(call, options, key, info)
        elif is_unanswered_attempt(call, info):
            raise republish_after_unanswered(call, options, info)
        else:
            break
    left = left_ms(call, options.contention_timeout_ms)
    error = contended(backend, key, info)
    try:
        policy = _policy(acquiring)
        acquiring.was_contended = True
        _notify_contended(acquiring, key, error, policy)
        if policy == "skip":
            return Skipped(options.skip_result)
        if policy == "fail":
            raise error
        if policy == "retry" and call.in_worker:
            if left is not None and left <= 0:
                raise error
            return _wait_or_republish(acquiring, key, error, left)
    finally:
        del error  # a cycle: the traceback holds this frame
    acquisition = Acquisition() if left is None else acquisition_within(max(1, round(left)))
    holding = acquiring.wait(key, acquisition)
    if holding is None:
        raise contended(backend, key, backend.lookup(key=key))
    return holding


def _policy(acquiring: Acquiring) -> Policy:
    policy = acquiring.options.on_contention
    if not callable(policy):
        return policy
    chosen = call_with(policy, acquiring.bind())
    for known in POLICIES:
        if chosen == known:
            return known
    raise invalid_argument(f"on_contention must return one of {POLICIES}")


def _wait_or_republish(
    acquiring: Acquiring, key: str, error: LockContended, left: float | None
) -> Holding:
    """Wait in the slot if it is this task's turn; else publish it again and raise Retry."""
    call, backend, contended_at = acquiring.call, acquiring.backend, time.monotonic()
    turn = next_turn(backend, key, call.request, left, waits=True)
    if turn.ticket is not None:
        wait_ms = SLOT_WAIT_MS if left is None else max(1, min(SLOT_WAIT_MS, round(left)))
        with waiting_turn(backend, key, turn.ticket):
            holding = acquiring.wait(key, acquisition_within(wait_ms))
        if holding is not None:
            return holding
        if left is not None:
            left -= (time.monotonic() - contended_at) * 1000
            if left <= 0:
                raise contended(backend, key, backend.lookup(key=key))
        turn = next_turn(backend, key, call.request, left, waits=False)
    raise republish(call, error, turn, (time.monotonic() - contended_at) * 1000)


def _wait_for_predecessor(acquiring: Acquiring, key: str, predecessor: str) -> Holding | Skipped:
    acquisition = acquisition_within(_PREDECESSOR_WAIT_MS)
    while (holding := acquiring.wait(key, acquisition)) is None:
        info = acquiring.backend.lookup(key=key)
        if info is not None and info.fence != predecessor:
            return contend(acquiring, key)  # another call acquired it first
    return holding


def _notify_contended(acquiring: Acquiring, key: str, error: LockContended, policy: Policy) -> None:
    call = acquiring.call
    notify(
        task_lock_contended,
        # At INFO once for each task, however often it is published again.
        logging.DEBUG if attempts_of(call.request) else logging.INFO,
        f"found its lock held by somebody else: {policy}",
        call,
        lambda: error.key_hash or acquiring.backend.hash(key),
        fence=error.fence,
        waited_ms=waited_ms(call, acquiring.started, time.monotonic()),
        policy=policy,
    )


def acquisition_within(timeout_ms: int) -> Acquisition:
    """Wait for this long: the time is the limit, not the number of retries."""
    return Acquisition(
        max_retries=2 * timeout_ms // POLL_MS + 10,
        retry_delay_ms=POLL_MS,
        backoff="fixed",
        timeout_ms=timeout_ms,
    )


def left_ms(call: Call, timeout_ms: int | None) -> float | None:
    """How long the task may still contend; None if there is no limit."""
    if timeout_ms is None:
        return None
    since_ms = contended_since_ms(call.request)
    return timeout_ms if since_ms is None else timeout_ms - (time.time() * 1000 - since_ms)


def republish(call: Call, error: LockContended, turn: Turn, contended_ms: float = 0.0) -> Retry:
    """Publish the task again with a delay. This does not count against its ``max_retries``.

    ``contended_ms``: how long this delivery has contended so far.
    """
    task: Any = call.task
    request: Any = call.request
    seconds = below_visibility_timeout(call.app, turn.delay_ms) / 1000
    since_ms = contended_since_ms(request)
    signature = task.signature_from_request(request, countdown=seconds, retries=request.retries)
    with attaching(
        request.id,
        since=round(time.time() * 1000 - contended_ms) if since_ms is None else since_ms,
        attempts=attempts_of(request) + 1,
        **({"place": turn.place_ms} if turn.place_ms else {}),
        **copy_mark(call),
    ):
        signature.apply_async()
    text = f"the lock is held by somebody else; retrying in {seconds:.1f} s"
    again: Any = Retry  # its stub takes a numbers.Real; mypy does not accept a float as one
    retry: Retry = again(text, exc=error, when=seconds, sig=signature)
    return retry
