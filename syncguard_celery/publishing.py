"""Publishing a locked task: what ``delay()`` and ``apply_async()`` do before Celery's own.

With ``at="publish"`` the lock is taken here and its id goes into the message. A duplicate
publishes nothing; one whose id is prescribed (a canvas knows it already) is published without the
lock, and its worker does what the contention policy says.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.uuid import uuid

from syncguard import Acquired, LockBackend
from syncguard_celery.backends import backend_of
from syncguard_celery.calls import Call, locked_function, republishes
from syncguard_celery.contention import GLIMPSES
from syncguard_celery.exiting import handed_on, release_again
from syncguard_celery.holding import enclosing
from syncguard_celery.labels import holder_label, task_id_in
from syncguard_celery.propagation import attaching
from syncguard_celery.running import LockedFunction
from syncguard_celery.signals import task_lock_contended, tell
from syncguard_celery.suspension import suspended

if TYPE_CHECKING:
    from celery.app.task import Task
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
    if suspended():
        return publish(task_id=task_id)
    again = task_id is not None and republishes(self.name, task_id)
    if locked.options.at == "run":
        if not again and not locked.key_is_computed and not _has_pydantic(self):
            # A key that cannot be made is an error here, not in some worker. One that is
            # computed may be costly, or need arguments as only the worker has them.
            locked.key_for_task(self, args or (), kwargs or {})
        return publish(task_id=task_id)
    if self.app.conf.task_always_eager:
        return publish(task_id=task_id)
    key = locked.key_for_task(self, args or (), kwargs or {})
    if task_id is not None and again:
        return _publish_again(self, locked, publish, key, task_id, options)
    if key is None:
        return publish(task_id=task_id)
    return _publish_once(self, locked, publish, key, task_id, _delay_ms(self, options))


def _next_apply_async(task: Task[..., Any]) -> Publish:
    """What the task's class would do without us: its base's, whichever that is."""
    for kind in type(task).__mro__:
        if kind.__dict__.get("apply_async") is apply_async:
            base: Any = super(kind, task)
            publish: Publish = base.apply_async
            return publish
    raise AssertionError("the task's class lost its apply_async")


def _has_pydantic(task: Any) -> bool:
    return getattr(task, "_dump_pydantic_arguments", None) is not None


def _publish_once(
    task: Task[..., Any],
    locked: LockedFunction,
    publish: Publish,
    key: str,
    prescribed_id: str | None,
    delay_ms: float,
) -> AsyncResult[Any]:
    backend = backend_of(locked.options, task.app)
    task_id = prescribed_id or uuid()
    label = holder_label(task.name, task_id)
    for _ in range(GLIMPSES):
        answer = backend.acquire(key, locked.options.pending_ttl_ms + round(delay_ms), holder=label)
        if answer.ok:
            return _publish_with(answer, backend, publish, task_id)
        if prescribed_id is not None:
            break
        info = backend.lookup(key=key)
        if info is None:
            continue
        twin = task_id_in(info.holder, task.name)
        if twin is not None:
            tell(
                task_lock_contended,
                logging.INFO,
                f"is not published: {twin} is queued or running",
                Call(task.name, task, None, task.app),
                lambda: backend.hash(key),
                fence=info.fence,
                policy="publish",
            )
            return task.AsyncResult(twin)
        break
    return publish(task_id=task_id)


def _publish_with(
    acquired: Acquired, backend: LockBackend, publish: Publish, task_id: str
) -> AsyncResult[Any]:
    try:
        with attaching(task_id, lock=acquired.lock_id):
            return publish(task_id=task_id)
    except BaseException:
        release_again(backend, acquired.lock_id)
        raise


def _publish_again(
    task: Task[..., Any],
    locked: LockedFunction,
    publish: Publish,
    key: str | None,
    task_id: str,
    options: dict[str, Any],
) -> AsyncResult[Any]:
    """A retry: no check, and a publish-time lock goes with it."""
    publish = functools.partial(publish, task_id=task_id)
    request: Any = task.request
    is_retry = options.get("retries", 0) > request.retries
    if not is_retry:
        return publish()
    delay_ms = _delay_ms(task, options)
    holding = next((own for own in enclosing() if own.call.request is request), None)
    if holding is not None and holding.key != key:
        return publish()  # its arguments were changed: this lock would be the wrong one
    if holding is not None and holding.retry is None:
        # The task still runs, under the lock that the retry is to have. It is published when the
        # task has ended: no retry may begin before.
        holding.retry = (publish, delay_ms)
        return task.AsyncResult(task_id)
    lock_id = handed_on(request)  # by autoretry_for, which comes after the lock was let go
    if lock_id is None:
        return publish()
    backend = backend_of(locked.options, task.app)
    if delay_ms:
        backend.extend(lock_id, locked.options.pending_ttl_ms + round(delay_ms))
    try:
        with attaching(task_id, lock=lock_id):
            return publish()
    except BaseException:
        release_again(backend, lock_id)
        raise


def _delay_ms(task: Task[..., Any], options: dict[str, Any]) -> float:
    """For how long the message is to lie before it may run."""
    countdown, eta = options.get("countdown"), options.get("eta")
    if countdown:
        return max(0.0, float(countdown) * 1000)
    if isinstance(eta, str):
        eta = maybe_iso8601(eta)
    if not isinstance(eta, datetime.datetime):
        return 0.0
    ahead = maybe_make_aware(eta, task.app.timezone) - task.app.now()
    return max(0.0, ahead.total_seconds() * 1000)
