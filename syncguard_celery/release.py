"""How a call ends its hold of the lock: at every exit, once, and before anything else.

Usually it releases the lock, also after a time limit and at a shutdown of the worker. A task that
ends before ``min_hold_ms`` keeps the lock until then. A task that will be retried hands its
publish-time lock over to the message of the retry, with a new lock id.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from celery.exceptions import Ignore, Reject, Retry

from syncguard import Lock, LockBackend, LockError
from syncguard.backend import Secret
from syncguard_celery.holder_label import holder_label
from syncguard_celery.hot_key_turns import record_hold
from syncguard_celery.publish_lock.handover import publish_with_lock, release_quietly
from syncguard_celery.redelivery import Republished
from syncguard_celery.running_calls import Holding, put_innermost
from syncguard_celery.signals import listening, logger, notify, task_lock_released
from syncguard_celery.task_call import Call

if TYPE_CHECKING:
    from celery.app.task import Context

_HANDED_OVER: Final = "_syncguard_handed_over"


def end_hold(holding: Holding, error: BaseException | None) -> None:
    """Release, keep or hand over. Raises LockLost if it was lost and the task raised nothing."""
    put_innermost(holding.outer)
    try:
        hands_over = _prepare(holding, error)
        holding.lock.__exit__(type(error) if error else None, error, None)
        if holding.was_contended:
            record_hold(holding.key, max(holding.held_ms, holding.options.min_hold_ms or 0))
        if hands_over:
            _hand_over(holding)
        else:
            _notify_released(holding)
    finally:
        if holding.retry is not None:
            _publish_retry(holding)


def release_after_interrupt(block: Lock | None, backend: LockBackend, lock_id: str) -> None:
    """Clean up after a time limit or a shutdown at any point: end the heartbeat and the lock."""
    if block is not None:
        with contextlib.suppress(Exception):
            block.__exit__(None, None, None)
    release_quietly(backend, lock_id)


def take_handed_over(request: Context) -> str | None:
    """Remove and return the id of the lock that was handed over to this request's retry."""
    lock_id = request.__dict__.pop(_HANDED_OVER, None)
    return None if lock_id is None else str.__str__(lock_id)


def _prepare(holding: Holding, error: BaseException | None) -> bool:
    """Keep the lock if it must not be released. Returns whether it is handed over to a retry."""
    options, held = holding.options, holding.held
    if options.at == "run" and options.min_hold_ms is None:
        return False
    if holding.is_retried or (isinstance(error, Reject) and getattr(error, "requeue", False)):
        return False
    if holding.retry is not None or ends_in_retry(holding.call, error):
        hands_over = options.at == "publish" and holding.call.in_worker and not held.lost
        if hands_over:
            held.keep()
        return hands_over
    # After SystemExit and the like there is no minimum: the task will run in another process.
    if options.min_hold_ms is not None and (error is None or isinstance(error, Exception)):
        rest_ms = round(options.min_hold_ms - holding.held_ms)
        if rest_ms > 0 and not held.lost:
            held.keep(rest_ms)
    return False


def _hand_over(holding: Holding) -> None:
    """Give the lock, which is no longer extended, a new id and a TTL until the retry runs."""
    assert holding.call.request is not None
    delay_ms = 0.0 if holding.retry is None else holding.retry[1]
    try:
        answer = holding.backend.adopt(
            holding.held.lock_id,
            holding.options.pending_ttl_ms + round(delay_ms),
            holder=holder_label(holding.call.name, holding.call.task_id),
        )
    except LockError as error:
        # The retry must still be published. It has this fence, and waits until the lock is free.
        logger.warning(
            "Could not hand over a lock to a retry (%s: %s); the retry acquires it again.",
            error.code,
            error,
        )
        release_quietly(holding.backend, holding.held.lock_id)
        return
    if answer.ok:
        holding.call.request.__dict__[_HANDED_OVER] = Secret(answer.lock_id)


def _publish_retry(holding: Holding) -> None:
    assert holding.retry is not None
    assert holding.call.request is not None
    publish, _ = holding.retry
    request = holding.call.request
    lock_id = take_handed_over(request)
    try:
        if lock_id is None:
            publish()
        else:
            publish_with_lock(lock_id, holding.backend, str(request.id), publish)
    except Exception as error:
        raise Reject(error, requeue=False) from error  # as Celery's own retry() does


def _notify_released(holding: Holding) -> None:
    if not listening(task_lock_released, logging.DEBUG) or holding.held.lost:
        return
    notify(
        task_lock_released,
        logging.DEBUG,
        "released its lock",
        holding.call,
        holding.key_hash,
        fence=holding.held.fence,
        waited_ms=holding.waited_ms,
        held_ms=holding.held_ms,
    )


def ends_in_retry(call: Call, error: BaseException | None) -> bool:
    """Whether Celery will run this task again because of how it ended.

    ``autoretry_for`` acts outside the function we wrap, after our lock is released, so this has to
    be predicted. The rules are those of ``celery.app.autoretry``.
    """
    if isinstance(error, (Republished, Retry)):
        return True
    if error is None or call.task is None or call.request is None or call.request.called_directly:
        return False
    task: Any = call.task
    if not hasattr(task, "_orig_run") or isinstance(error, Ignore):
        return False
    if isinstance(error, tuple(getattr(task, "dont_autoretry_for", ()))):
        return False
    if not isinstance(error, tuple(getattr(task, "autoretry_for", ()))):
        return False
    limit = getattr(task, "override_max_retries", None)
    if limit is None:
        limit = getattr(task, "retry_kwargs", {}).get("max_retries")
    if limit is None:
        limit = task.max_retries
    return limit is None or call.request.retries < limit
