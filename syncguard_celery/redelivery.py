"""A message that was delivered again: the lock of its own earlier delivery is not contention.

Brokers deliver a message again when its worker died, and also when it took longer than the
``visibility_timeout``. The copy then finds the lock held under its own task id. It stores neither
state nor result, and is published again until it knows which of the two happened:

- the lock is still held: a live run extends it at a third of its TTL, so look again after that,
  and once more when it would expire;
- it was released before it could expire: the earlier delivery ended. Drop the copy;
- it has expired, or may have: the earlier delivery is dead, or its end is unknown. Run.

If the result store shows that the task has ended, that decides. Tasks run at least once: a task
whose end is unknown runs again.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from celery.exceptions import Ignore, Reject
from celery.states import FAILURE, PENDING, RETRY, REVOKED, SUCCESS
from kombu.exceptions import OperationalError

from syncguard import LockBackend, LockError, LockInfo
from syncguard_celery.holder_label import is_redelivered, task_id_in
from syncguard_celery.message_header import (
    earlier_delivery,
    header_of,
    key_digest,
    unavailable_since_ms,
)
from syncguard_celery.republishing import publish_again
from syncguard_celery.signals import logger
from syncguard_celery.visibility_timeout import below_visibility_timeout

if TYPE_CHECKING:
    from celery.app.task import Context

    from syncguard_celery.options import LockOptions
    from syncguard_celery.task_call import Call

MAX_CLOCK_SKEW_MS: Final = 2_000
"""How far this machine's clock may differ from that of the lock's server."""

_MIN_DELAY_MS: Final = 200.0
_MAX_DELAY_MS: Final = 60_000.0
_RESULT_WAIT_MS: Final = 5_000.0
"""A task releases its lock before its result is stored. Storing may take this long."""


class Republished(Ignore):
    """This delivery ends, and the same task has been published again."""


def is_copy(call: Call) -> bool:
    """Whether the message of this call may have been delivered before."""
    request = call.request
    if request is None or not call.in_worker:
        return False
    if request.delivery_info and request.delivery_info.get("redelivered"):
        return True
    return earlier_delivery(request) is not None or _follows_a_lost_worker(call, request)


def copy_mark(call: Call) -> dict[str, object]:
    """The header field that marks a message which repeats this call as a copy."""
    return {"earlier": {}} if is_copy(call) else {}


def is_own_delivery(call: Call, info: LockInfo) -> bool:
    """Whether the holder is another delivery of the same message.

    The task id alone is not enough: two publications may have the same id. The broker marks the
    second delivery; that may be this call or the holder.
    """
    if call.task_id is None or task_id_in(info.holder, call.name) != call.task_id:
        return False
    return call.in_worker and (is_copy(call) or is_redelivered(info.holder))


def check_earlier_delivery(
    call: Call, options: LockOptions, backend: LockBackend, key: str
) -> None:
    """For a copy, before it acquires: return if it must run, else raise what ends it."""
    state = stored_state(call)
    if state == SUCCESS:
        raise _dropped(call)
    until_ms = (earlier_delivery(call.request) or {}).get(key_digest(key))
    if until_ms is None:
        return
    info = backend.lookup(key=key)
    if info is not None and is_own_delivery(call, info):
        raise republish_copy(call, options, key, info)
    # The lock may have been an attempt of this task that got no answer and was undone since:
    # then its release does not mean that the task ended.
    is_unanswered = unavailable_since_ms(call.request) is not None
    if not is_unanswered and _now_ms() < until_ms - MAX_CLOCK_SKEW_MS:
        _require_not_ended(call, options, state)
    logger.info(
        "Task %s[%s] runs again: its earlier delivery did not finish",
        call.name,
        call.task_id,
    )


def republish_copy(call: Call, options: LockOptions, key: str, info: LockInfo) -> Exception:
    """Another delivery of this message holds the lock: publish this one for later.

    Returns the exception to raise.
    """
    now_ms = _now_ms()
    extended_ms = (
        info.expires_at_ms - options.ttl_ms / 2
    )  # after the extension that is due at a third
    is_due = now_ms >= extended_ms or not options.auto_extend
    look_ms = info.expires_at_ms + _MIN_DELAY_MS if is_due else extended_ms
    earlier = earlier_delivery(call.request) or {}
    digest = key_digest(key)
    is_alive = info.expires_at_ms > earlier.get(digest, info.expires_at_ms)
    header: dict[str, object] = {"earlier": {**earlier, digest: info.expires_at_ms}}
    if unavailable_since_ms(call.request) is not None and not is_alive:
        header["unavailable"] = round(now_ms)
    return _look_again(call, options, look_ms - now_ms, **header)


def stored_state(call: Call) -> str | None:
    """The state of this task in the result store; None if it is unknown.

    None also for an id chosen by the user: it may have been used before, for an older result.
    """
    task: Any = call.task
    request: Any = call.request
    if request.ignore_result or task.ignore_result or not _is_made_by_celery(call.task_id):
        return None
    try:
        if task.backend.as_uri().startswith("rpc"):  # only the caller can read its results
            return None
        result = task.AsyncResult(call.task_id)
        state: str = result.state
        # Stored because of contention or an outage before it ran: the task has not ended.
        if state == RETRY and isinstance(result.result, LockError):
            return PENDING
    except Exception:  # no result store, or it cannot be reached
        return None
    return state


def _require_not_ended(call: Call, options: LockOptions, state: str | None) -> None:
    """The lock was released. Return if the task has not ended nevertheless: a shutdown interrupts
    a task, which then releases its lock."""
    if state is None or state in (FAILURE, REVOKED, RETRY):
        raise _dropped(call)
    now_ms = round(_now_ms())
    ended_ms: int = header_of(call.request).get("ended", now_ms)
    if now_ms - ended_ms < _RESULT_WAIT_MS:
        earlier = earlier_delivery(call.request)
        raise _look_again(call, options, _RESULT_WAIT_MS, earlier=earlier, ended=ended_ms)


def _look_again(call: Call, options: LockOptions, delay_ms: float, **header: object) -> Exception:
    delay_ms = min(max(delay_ms, _MIN_DELAY_MS), _MAX_DELAY_MS)
    delay_ms = below_visibility_timeout(call.app, delay_ms)
    is_first = earlier_delivery(call.request) is None
    try:
        publish_again(
            call, delay_ms, publish_timeout_ms=options.unavailable_timeout_ms, header=header
        )
    except OperationalError as error:
        return Reject(error, requeue=True)
    text = "was delivered again while an earlier delivery holds its lock"
    log = logger.info if is_first else logger.debug
    log("Task %s[%s] %s; looking again in %.1f s", call.name, call.task_id, text, delay_ms / 1000)
    return Republished(text)


def _dropped(call: Call) -> Ignore:
    text = "was delivered again but has already ended; dropping the copy"
    logger.info("Task %s[%s] %s", call.name, call.task_id, text)
    return Ignore(text)


def _follows_a_lost_worker(call: Call, request: Context) -> bool:
    """Whether ``retry_on_worker_lost`` published this: a retry that no run requested."""
    task: Any = call.task
    return bool(
        getattr(task, "retry_on_worker_lost", False)
        and request.retries
        and "after" not in header_of(request)
    )


def _is_made_by_celery(task_id: str | None) -> bool:
    """Whether Celery made this id."""
    try:
        return uuid.UUID(task_id).version == 4
    except (TypeError, ValueError):
        return False


def _now_ms() -> float:
    return time.time() * 1000
