"""For Django REST framework: 423 Locked as one of its exceptions, and an exception handler.

Needs the package ``djangorestframework``, which SyncGuard does not install. ``locked`` uses this
module automatically in views of that framework; projects import it for the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http.response import HttpResponseBase
from rest_framework import status
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.views import APIView
from rest_framework.views import exception_handler as framework_handler

from syncguard import AcquisitionTimeout
from syncguard_django.retry_after import TEXT, lookup_or_none, retry_after_s
from syncguard_django.settings import DEFAULT_ALIAS, configuration

__all__ = ["Locked", "as_api_exception", "exception_handler"]


class Locked(APIException):
    """Another holder has the lock. The response is 423, with Retry-After if ``wait`` is known."""

    status_code = status.HTTP_423_LOCKED
    default_detail = TEXT
    default_code = "locked"

    def __init__(
        self, detail: object = None, code: str | None = None, wait: int | None = None
    ) -> None:
        super().__init__(detail, code)
        self.wait = wait  # the framework's handler sets Retry-After from it


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponseBase | None:
    """The framework's own handler, which also handles ``AcquisitionTimeout``, as ``Locked``."""
    answer: HttpResponseBase | None = framework_handler(as_api_exception(error), context)
    return answer


def as_api_exception(error: Exception) -> Exception:
    """``Locked`` for an ``AcquisitionTimeout``; other errors unchanged. For your own handler."""
    if not isinstance(error, AcquisitionTimeout):
        return error
    key = error.context.key
    info = None if key is None else lookup_or_none(key, DEFAULT_ALIAS)
    locked = Locked(wait=retry_after_s(info, configuration().of(DEFAULT_ALIAS).ttl_ms))
    locked.__cause__ = error
    return locked


def refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: int
) -> HttpResponseBase | None:
    """Raise ``Locked`` in a view of the framework. None: it is not a view of the framework.

    If ``locked`` wraps the framework's view, nothing would handle the exception. Then the view's
    own exception handler makes the response, as if the view had raised ``Locked``.
    """
    given = (*args[:2], kwargs.get("request"))
    if any(isinstance(value, Request) for value in given):
        raise Locked(wait=seconds)
    view = args[0] if args and isinstance(args[0], APIView) else _view_of(function)
    if view is None:
        return None
    request = next(value for value in given if value is not None and value is not view)
    return _answer_of(view, request, kwargs, seconds)


def _view_of(function: Any) -> APIView | None:
    """The view of a method that ``method_decorator`` bound, or a new one for ``@api_view``."""
    view = getattr(getattr(function, "func", None), "__self__", None)
    if isinstance(view, APIView):
        return view
    kind = getattr(function, "cls", None)
    return kind() if isinstance(kind, type) and issubclass(kind, APIView) else None


def _answer_of(
    view: APIView, request: object, kwargs: dict[str, Any], seconds: int
) -> HttpResponseBase:
    """The response that ``APIView.dispatch`` makes of an exception, without running the view."""
    view.args, view.kwargs = (), kwargs
    view.request = view.initialize_request(request, **kwargs)
    view.format_kwarg = view.get_format_suffix(**kwargs)
    view.headers = view.default_response_headers
    response = view.handle_exception(Locked(wait=seconds))
    answer: HttpResponseBase = view.finalize_response(view.request, response, **kwargs)
    return answer
