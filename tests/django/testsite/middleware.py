"""The strictest useful policy: nothing inline, nothing from elsewhere."""

from __future__ import annotations

import inspect

from django.utils.decorators import sync_and_async_middleware


@sync_and_async_middleware
def strict_content_security_policy(get_response):
    if inspect.iscoroutinefunction(get_response):

        async def amiddleware(request):
            return _with_policy(await get_response(request))

        return amiddleware

    def middleware(request):
        return _with_policy(get_response(request))

    return middleware


def _with_policy(response):
    response["Content-Security-Policy"] = "default-src 'self'"
    return response
