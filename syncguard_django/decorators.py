"""``locked``: a lock around a function or a view, plain or ``async def``.

A view is a function that is called with an ``HttpRequest``. If it cannot acquire its lock, the
response is 423 Locked with Retry-After; any other function raises ``AcquisitionTimeout``. With
ATOMIC_REQUESTS, the transactions are opened inside the lock.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, nullcontext
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from syncguard import Acquisition, LockError, OnLost
from syncguard.backend import Secret
from syncguard.key_templates import key_of
from syncguard.short_ttl_warning import warn_of_short_ttl
from syncguard_django.hold_until_transaction_end import require_finished
from syncguard_django.holder_label import label_of
from syncguard_django.locked_response import refusal
from syncguard_django.locking import alock, lock
from syncguard_django.retry_after import lookup_or_none, lookup_or_none_async, retry_after_s
from syncguard_django.settings import DEFAULT_ALIAS, Until, configuration
from syncguard_django.view_transactions import (
    RequestTransactions,
    open_inside_the_lock,
    request_of,
)

P = ParamSpec("P")
R = TypeVar("R")


def locked(
    *,
    key: str | Callable[..., str],
    ttl_ms: int | None = None,
    using: str = DEFAULT_ALIAS,
    acquisition: Acquisition | None = None,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    holder: str | None = None,
    on_lost: OnLost | None = None,
    reentrant: bool = False,
    until: Until | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Hold a lock while the function runs. The key is a template over its arguments::

        @locked(key="invoice:{invoice_id}")
        def settle(request, invoice_id): ...

    or a function that is called with them.
    """
    options: dict[str, Any] = {
        "ttl_ms": ttl_ms,
        "using": using,
        "acquisition": acquisition,
        "auto_extend": auto_extend,
        "max_hold_ms": max_hold_ms,
        "holder": holder,
        "on_lost": on_lost,
        "reentrant": reentrant,
    }

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise LockError(
                "InvalidArgument",
                "cannot lock a generator function: its body runs after the call returns;"
                " use `with lock()` inside it",
            )
        find_key = key_of(key, function)
        wrapped: Callable[..., Any]
        if iscoroutinefunction(function):
            if until == "transaction":
                raise LockError(
                    "InvalidArgument",
                    "until='transaction' is not possible for an async def: its lock is released at"
                    " the end of the call",
                )
            wrapped = functools.wraps(function)(_locked_async(function, find_key, options))
        else:
            more = {**options, "until": until}
            wrapped = functools.wraps(function)(_locked(function, find_key, more))
            open_inside_the_lock(wrapped, function)
        return cast("Callable[P, R]", wrapped)

    return decorate


def _locked(
    function: Callable[..., Any], find_key: Callable[..., str], options: dict[str, Any]
) -> Callable[..., Any]:
    def locked(*args: Any, **kwargs: Any) -> Any:
        key = Secret(find_key(*args, **kwargs))  # debug pages show it: hide it
        request = request_of(args, kwargs)
        transactions = RequestTransactions(request)
        aliases = transactions.to_open()
        warned = options["until"] != "block" and transactions.warn_if_open(function)
        new_lock = lock(key, **_with_holder(options, function))
        warn_of_short_ttl(_ttl_ms(options), function)
        with ExitStack() as stack:
            try:
                held = stack.enter_context(new_lock.without_warning() if warned else new_lock)
            except LockError as error:
                if error.code != "AcquisitionTimeout" or request is None:
                    raise
                seconds = retry_after_s(lookup_or_none(key, options["using"]), _ttl_ms(options))
                return refusal(function, args, kwargs, seconds)
            if not aliases:
                return require_finished(function(*args, **kwargs))
            # The lock's block ends inside the transaction. So the lock is released after the commit
            # and before the on_commit hooks: a task that a hook publishes may need the lock.
            with (
                transactions.opened(aliases, held),
                stack.pop_all() if new_lock.until == "transaction" else nullcontext(),
            ):
                return require_finished(function(*args, **kwargs))

    return locked


def _locked_async(
    function: Callable[..., Any], find_key: Callable[..., str], options: dict[str, Any]
) -> Callable[..., Any]:
    async def locked(*args: Any, **kwargs: Any) -> Any:
        key = Secret(find_key(*args, **kwargs))  # debug pages show it: hide it
        new_lock = alock(key, **_with_holder(options, function))
        warn_of_short_ttl(_ttl_ms(options), function)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(new_lock)
            except LockError as error:
                if error.code != "AcquisitionTimeout" or request_of(args, kwargs) is None:
                    raise
                info = await lookup_or_none_async(key, options["using"])
                return refusal(function, args, kwargs, retry_after_s(info, _ttl_ms(options)))
            return require_finished(await function(*args, **kwargs))

    return locked


def _with_holder(options: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Add the holder label at the call, not at decoration: the process may have forked since."""
    return {**options, "holder": options["holder"] or label_of(function)}


def _ttl_ms(options: dict[str, Any]) -> int:
    ttl_ms: int = options["ttl_ms"] or configuration().of(options["using"]).ttl_ms
    return ttl_ms
