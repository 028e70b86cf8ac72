"""The response of a view that cannot acquire its lock: 423 Locked, with Retry-After.

In a view of Django REST framework it is an exception of that framework, so that the project's
renderers and exception handler produce the response. Projects that do not use the framework never
import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from syncguard_django.retry_after import TEXT


def refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: int
) -> HttpResponseBase:
    """The response of this view, which was called with these arguments."""
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
