"""Another holder has the lock: the error for that, and publishing the task again.

``acquire`` decides what to do about contention; this module decides how long and how often.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery.exceptions import Retry

from syncguard import Acquisition, AcquisitionTimeout, ErrorContext, LockBackend, LockInfo, Turn
from syncguard_celery.fence_propagation import attaching
from syncguard_celery.hot_key_turns import attempts_of
from syncguard_celery.message_header import contended_since_ms
from syncguard_celery.redelivery import copy_mark
from syncguard_celery.republishing import below_visibility_timeout
from syncguard_celery.task_call import Call

LOOKUP_ATTEMPTS: Final = 5
"""How often the lock may be released between an attempt and a lookup before that is contention."""

POLL_MS: Final = 500
"""A release wakes a waiter. Polling is for holders that wake nobody or that died."""


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
