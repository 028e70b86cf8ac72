"""``@locked_task`` and ``@locked``: a Celery task with a lock, or a lock under a Celery task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from celery import shared_task

from syncguard import DEFAULT_TTL_MS
from syncguard.backend import invalid_argument
from syncguard.key_templates import KeySource
from syncguard_celery.locked_function import LockedFunction, wrap
from syncguard_celery.misspelt_options import refuse_misspelt
from syncguard_celery.options import (
    DEFAULT_PENDING_TTL_MS,
    DEFAULT_UNAVAILABLE_TIMEOUT_MS,
    At,
    BackendSource,
    LockOptions,
    LostSource,
    PolicySource,
    UnavailableSource,
)
from syncguard_celery.publish_lock import apply_async, cleanup
from syncguard_celery.pydantic_keys import pydantic_options

if TYPE_CHECKING:
    from celery import Celery
    from celery.app.task import Task

P = ParamSpec("P")
R = TypeVar("R")
SelfT = TypeVar("SelfT")

_NO_KEY = "a locked task needs a key: @locked_task(key='invoice:{invoice_id}')"


@overload
def locked_task(
    *,
    key: KeySource,
    bind: Literal[True],
    app: Celery | None = ...,
    backend: BackendSource | None = ...,
    using: str | None = ...,
    at: At = ...,
    on_contention: PolicySource = ...,
    contention_timeout_ms: int | None = ...,
    skip_result: object = ...,
    ttl_ms: int = ...,
    auto_extend: bool = ...,
    max_hold_ms: int | None = ...,
    min_hold_ms: int | None = ...,
    pending_ttl_ms: int = ...,
    on_lost: LostSource = ...,
    on_unavailable: UnavailableSource = ...,
    unavailable_timeout_ms: int = ...,
    reentrant: bool = ...,
    **task_options: object,
) -> Callable[[Callable[Concatenate[SelfT, P], R]], Task[P, R]]: ...


@overload
def locked_task(
    *,
    key: KeySource,
    bind: Literal[False] = ...,
    app: Celery | None = ...,
    backend: BackendSource | None = ...,
    using: str | None = ...,
    at: At = ...,
    on_contention: PolicySource = ...,
    contention_timeout_ms: int | None = ...,
    skip_result: object = ...,
    ttl_ms: int = ...,
    auto_extend: bool = ...,
    max_hold_ms: int | None = ...,
    min_hold_ms: int | None = ...,
    pending_ttl_ms: int = ...,
    on_lost: LostSource = ...,
    on_unavailable: UnavailableSource = ...,
    unavailable_timeout_ms: int = ...,
    reentrant: bool = ...,
    **task_options: object,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def locked_task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    key: KeySource | None = None,
    app: Celery | None = None,
    backend: BackendSource | None = None,
    using: str | None = None,
    at: At = "run",
    on_contention: PolicySource = "retry",
    contention_timeout_ms: int | None = None,
    skip_result: object = None,
    ttl_ms: int = DEFAULT_TTL_MS,
    auto_extend: bool = True,
    max_hold_ms: int | None = None,
    min_hold_ms: int | None = None,
    pending_ttl_ms: int = DEFAULT_PENDING_TTL_MS,
    on_lost: LostSource = "raise",
    on_unavailable: UnavailableSource = "retry",
    unavailable_timeout_ms: int = DEFAULT_UNAVAILABLE_TIMEOUT_MS,
    reentrant: bool = True,
    **task_options: Any,
) -> Any:
    """``shared_task`` with a lock: the task holds it while it runs.

    ``key`` is a template that names the task's arguments, or a callable that takes them. If the
    callable returns None, the task runs without a lock. ``app=`` makes it a task of that app
    only. Options of a Celery task are passed to Celery. The lock's options are those of
    ``LockOptions``.
    """
    if key is None:
        raise invalid_argument(_NO_KEY)
    options = LockOptions(
        backend=backend,
        using=using,
        at=at,
        on_contention=on_contention,
        contention_timeout_ms=contention_timeout_ms,
        skip_result=skip_result,
        ttl_ms=ttl_ms,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        min_hold_ms=min_hold_ms,
        pending_ttl_ms=pending_ttl_ms,
        on_lost=on_lost,
        on_unavailable=on_unavailable,
        unavailable_timeout_ms=unavailable_timeout_ms,
        reentrant=reentrant,
    )

    refuse_misspelt(task_options, app)
    if at == "publish":
        cleanup.listen()

    def decorate(function: Callable[..., Any]) -> Any:
        pydantic = pydantic_options(task_options)
        wrapped = wrap(function, LockedFunction(function, key, options, app, pydantic))
        make: Callable[..., Any] = shared_task
        if app is not None:
            make = app.task
            task_options.setdefault("shared", False)  # a task of that app only
        # Celery makes a class for the task, with these options as attributes. So apply_async is
        # ours for every base class, including the app's own.
        return make(apply_async=apply_async.apply_async, **task_options)(wrapped)

    return decorate if function is None else decorate(function)


def locked(
    *,
    key: KeySource,
    backend: BackendSource | None = None,
    using: str | None = None,
    on_contention: PolicySource = "retry",
    contention_timeout_ms: int | None = None,
    skip_result: object = None,
    ttl_ms: int = DEFAULT_TTL_MS,
    auto_extend: bool = True,
    max_hold_ms: int | None = None,
    min_hold_ms: int | None = None,
    on_lost: LostSource = "raise",
    on_unavailable: UnavailableSource = "retry",
    unavailable_timeout_ms: int = DEFAULT_UNAVAILABLE_TIMEOUT_MS,
    reentrant: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Only the lock, for a function that ``@app.task`` turns into a task.

    It has no ``at="publish"``: ``@app.task`` makes the task, so its publishing is not ours.
    """
    options = LockOptions(
        backend=backend,
        using=using,
        on_contention=on_contention,
        contention_timeout_ms=contention_timeout_ms,
        skip_result=skip_result,
        ttl_ms=ttl_ms,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        min_hold_ms=min_hold_ms,
        on_lost=on_lost,
        on_unavailable=on_unavailable,
        unavailable_timeout_ms=unavailable_timeout_ms,
        reentrant=reentrant,
    )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return wrap(function, LockedFunction(function, key, options))

    return decorate
