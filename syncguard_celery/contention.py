"""Somebody else holds the lock: the error that says so, and the publishing again of a task.

What is done about contention is decided in ``acquire``; here is how long and how often.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery.exceptions import Retry

from syncguard import Acquisition, AcquisitionTimeout, ErrorContext, LockBackend, LockInfo, Turn
from syncguard_celery.contention_turns import attempts_of
from syncguard_celery.message_header import contended_since_ms
from syncguard_celery.propagation import attaching
from syncguard_celery.redelivery import copy_mark
from syncguard_celery.republishing import below_visibility_timeout
from syncguard_celery.task_call import Call

LOOKUP_ATTEMPTS: Final = 5
"""How often a holder may let go between an attempt and the look at it before it counts as one."""

POLL_MS: Final = 500
"""A waiter is woken; this is for holders that wake nobody, and those that died."""


class LockContended(AcquisitionTimeout):
    """The lock was held by somebody else for as long as the task was ready to try.

    Its arguments are its constructor's, because that is how result stores rebuild an error.
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
    """The error for this key, with what is known of its holder."""
    if info is None:  # it let go meanwhile
        return LockContended(key_hash=backend.hash(key), context=ErrorContext(key=key))
    remaining_ms = max(0, info.expires_at_ms - round(time.time() * 1000))
    return LockContended(
        f"the lock is held by somebody else, for {remaining_ms} ms more unless it is extended",
        info.key_hash,
        info.fence,
        remaining_ms,
        ErrorContext(key=key),
    )


def acquisition_within(timeout_ms: int) -> Acquisition:
    """Wait for so long: the time decides, not a number of retries."""
    return Acquisition(
        max_retries=2 * timeout_ms // POLL_MS + 10,
        retry_delay_ms=POLL_MS,
        backoff="fixed",
        timeout_ms=timeout_ms,
    )


def left_ms(call: Call, timeout_ms: int | None) -> float | None:
    """How much of its time to contend is left; None if it has no limit."""
    if timeout_ms is None:
        return None
    since_ms = contended_since_ms(call.request)
    return timeout_ms if since_ms is None else timeout_ms - (time.time() * 1000 - since_ms)


def republish(call: Call, error: LockContended, turn: Turn, contended_ms: float = 0.0) -> Retry:
    """Publish the task again, for a little later, at no cost to its ``max_retries``.

    ``contended_ms``: how long this delivery has contended already.
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
    text = f"the lock is held by somebody else; trying again in {seconds:.1f} s"
    again: Any = Retry  # its stub takes a numbers.Real, which no float is to mypy
    retry: Retry = again(text, exc=error, when=seconds, sig=signature)
    return retry
