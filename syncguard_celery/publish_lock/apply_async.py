"""Publishing a locked task: what ``delay()`` and ``apply_async()`` do before Celery's own code.

With ``at="publish"`` the lock is acquired here, and the message carries its id. A duplicate is not
published. A duplicate with a given task id (a canvas already refers to it) is published without the
lock, and its worker applies the contention policy.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.states import REVOKED
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.uuid import uuid

from syncguard import LockError, LockInfo, get_by_key_raw
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.contention import LOOKUP_ATTEMPTS
from syncguard_celery.disabled_locks import locks_disabled
from syncguard_celery.holder_label import holder_label, task_id_in
from syncguard_celery.locked_function import LockedFunction
from syncguard_celery.message_header import take_lock
from syncguard_celery.publish_lock.handover import publish_with_lock
from syncguard_celery.redelivery import MAX_CLOCK_SKEW_MS
from syncguard_celery.release import take_handed_over
from syncguard_celery.running_calls import Holding, enclosing
from syncguard_celery.signals import notify, task_lock_contended
from syncguard_celery.task_call import Call, is_republish, locked_function

if TYPE_CHECKING:
    from celery.result import AsyncResult

Publish = Callable[..., "AsyncResult[Any]"]


def apply_async(
    self: Task[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    task_id: str | None = None,
    producer: object = None,
    link: object = None,
    link_error: object = None,
    shadow: str | None = None,
    **options: Any,
) -> AsyncResult[Any]:
    """Celery's ``Task.apply_async`` for a locked task. Becomes a method of the task's class."""
    publish = functools.partial(
        _next_apply_async(self),
        args,
        kwargs,
        producer=producer,
        link=link,
        link_error=link_error,
        shadow=shadow,
        **options,
    )
    locked: LockedFunction = locked_function(self)
    if locks_disabled():
        return publish(task_id=task_id)
    again = task_id is not None and is_republish(self.name, task_id)
    if locked.options.at == "run":
        if again:
            _record_retry(self, options)
        elif _are_arguments_final(self, locked):
            # If the key cannot be made, raise here, not in a worker.
            locked.key_for_task(self, args or (), kwargs or {})
        return publish(task_id=task_id)
    if self.app.conf.task_always_eager:
        return publish(task_id=task_id)
    if task_id is not None and again:
        publish = functools.partial(publish, task_id=task_id)
        return _publish_again(self, locked, publish, args or (), kwargs or {}, task_id, options)
    key = locked.key_for_task(self, args or (), kwargs or {})
    if key is None:
        return publish(task_id=task_id)
    return _publish_once(self, locked, publish, key, task_id, _delay_ms(self, options))


def _are_arguments_final(task: Task[..., Any], locked: LockedFunction) -> bool:
    """Whether these arguments are what the worker gets, so that the key template can be checked.

    A base class may add arguments, and a task with ``typing=False`` accepts any. A callable key
    may be slow, or need arguments that only the worker has.
    """
    if locked.key_is_computed or locked.pydantic is not None or not task.typing:
        return False
    return getattr(_next_apply_async(task), "__func__", None) is Task.apply_async


def _next_apply_async(task: Task[..., Any]) -> Publish:
    """The ``apply_async`` of the task's base class."""
    for kind in type(task).__mro__:
        if kind.__dict__.get("apply_async") is apply_async:
            base: Any = super(kind, task)
            publish: Publish = base.apply_async
            return publish
    raise AssertionError("the task's class has no apply_async of SyncGuard")


def _publish_once(
    task: Task[..., Any],
    locked: LockedFunction,
    publish: Publish,
    key: str,
    given_id: str | None,
    delay_ms: float,
) -> AsyncResult[Any]:
    backend = backend_of(locked.options, task.app)
    task_id = given_id or uuid()
    label = holder_label(task.name, task_id)
    for _ in range(LOOKUP_ATTEMPTS):
        answer = backend.acquire(key, locked.options.pending_ttl_ms + round(delay_ms), holder=label)
        if answer.ok:
            publish = functools.partial(publish, task_id=task_id)
            return publish_with_lock(answer.lock_id, backend, task_id, publish, key)
        if given_id is not None:
            break
        info = get_by_key_raw(backend, key)
        if info is None:
            continue
        existing_id = task_id_in(info.holder, task.name)
        if existing_id == task_id:
            continue  # an attempt of this call that was answered too late, and is undone now
        if existing_id is not None and _was_revoked_before_start(
            task, existing_id, info, locked.options.ttl_ms
        ):
            backend.release(info.lock_id)
            continue
        if existing_id is not None:
            notify(
                task_lock_contended,
                logging.INFO,
                f"was not published: task {existing_id} with the same lock is queued or running",
                Call(task.name, task, None, task.app),
                lambda: backend.hash(key),
                fence=info.fence,
                policy="publish",
            )
            return task.AsyncResult(existing_id)
        break
    return publish(task_id=task_id)


def _was_revoked_before_start(
    task: Task[..., Any], existing_id: str, info: LockInfo, ttl_ms: int
) -> bool:
    """Whether the queued task was revoked before it began.

    Its worker stores REVOKED at once, but drops the message and its lock only at the ETA. The lock
    of a running task has at most ``ttl_ms`` left.
    """
    if info.expires_at_ms - time.time() * 1000 <= ttl_ms + MAX_CLOCK_SKEW_MS:
        return False
    try:
        state: str = task.AsyncResult(existing_id).state
        return state == REVOKED
    except Exception:  # no result store, or it cannot be reached
        return False


def _record_retry(task: Task[..., Any], options: dict[str, Any]) -> None:
    """Record that the task ends in a retry: with ``throw=False`` it raises nothing."""
    request = task.request
    if _is_retry(request, options):
        for own in enclosing():
            own.is_retried = own.is_retried or own.call.request is request


def _is_retry(request: Any, options: dict[str, Any]) -> bool:
    return bool(options.get("retries", 0) > request.retries)


def _publish_again(
    task: Task[..., Any],
    locked: LockedFunction,
    publish: Publish,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    task_id: str,
    options: dict[str, Any],
) -> AsyncResult[Any]:
    """Publish a retry: without checks, and with the publish-time lock."""
    request: Any = task.request
    if not _is_retry(request, options):
        return publish()
    delay_ms = _delay_ms(task, options)
    holding = _publish_time_holding(request)
    if (
        holding is not None
        # With the same arguments, do not make the key again: a callable may return another one.
        and not _has_arguments(request, args, kwargs)
        and locked.key_for_task(task, args, kwargs) != holding.key
    ):
        return publish()  # the retry needs another lock
    if holding is not None and holding.retry is None:
        # The task still runs under the lock that the retry will have. The retry is published after
        # the task has ended, so that it cannot begin before.
        holding.retry = (publish, delay_ms)
        return task.AsyncResult(task_id)
    # A retry by autoretry_for, after the hold has ended; or one before the lock was adopted.
    lock_id = take_handed_over(request) or take_lock(request)
    if lock_id is None:
        return publish()
    backend = backend_of(locked.options, task.app)
    if delay_ms:
        with contextlib.suppress(LockError):  # the lock may expire; then the retry acquires it
            backend.extend(lock_id, locked.options.pending_ttl_ms + round(delay_ms))
    return publish_with_lock(lock_id, backend, task_id, publish)


def _publish_time_holding(request: object) -> Holding | None:
    for holding in enclosing():
        if holding.call.request is request and holding.options.at == "publish":
            return holding
    return None


def _has_arguments(request: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    same = list(args) == list(request.args or ()) and kwargs == (request.kwargs or {})
    return bool(same)


def _delay_ms(task: Task[..., Any], options: dict[str, Any]) -> float:
    """The delay until the message may run, from ``countdown`` or ``eta``."""
    countdown, eta = options.get("countdown"), options.get("eta")
    if countdown:
        return max(0.0, float(countdown) * 1000)
    if isinstance(eta, str):
        eta = maybe_iso8601(eta)
    if not isinstance(eta, datetime.datetime):
        return 0.0
    ahead = maybe_make_aware(eta, task.app.timezone) - task.app.now()
    return max(0.0, ahead.total_seconds() * 1000)
