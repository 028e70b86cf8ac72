"""What a view answers that cannot get its lock: 423 Locked, and when to come again.

In a view of Django REST framework it is an exception of that framework, so that the project's
renderers and its exception handler decide on the form. Without the package nothing of it is
imported.
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
