"""What a view answers that cannot get its lock: 423 Locked, and when to come again.

In a view of Django REST framework it is an exception of that framework, so that the project's
renderers and its exception handler decide on the form. Without the package nothing of it is
imported.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from syncguard import LockError, LockInfo
from syncguard_django.aliases import alocks, locks

TEXT: Final = "This resource is locked. Try again later."


def ask(key: str, using: str) -> LockInfo | None:
    """Who holds the lock, if that can be learned."""
    try:
        return locks[using].lookup(key=key)
    except LockError:
        return None


async def ask_async(key: str, using: str) -> LockInfo | None:
    """The same, in an event loop."""
    try:
        return await alocks[using].lookup(key=key)
    except LockError:
        return None


def retry_after_s(info: LockInfo | None, ttl_ms: int) -> int:
    """When the holder's time is over at the latest: a number of seconds within our TTL."""
    remaining_ms = ttl_ms if info is None else info.expires_at_ms - time.time() * 1000
    return math.ceil(max(1.0, min(remaining_ms, ttl_ms) / 1000))


def refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: int
) -> HttpResponseBase:
    """The answer of this view, which was called with these arguments."""
    if "rest_framework.views" in sys.modules:
        from syncguard_django import rest_framework

        answer = rest_framework.refusal(function, args, kwargs, seconds)
        if answer is not None:
            return answer
    return HttpResponse(
        f"{TEXT}\n",
        status=423,
        content_type="text/plain; charset=utf-8",
        headers={"Retry-After": str(seconds)},
    )
