"""Django REST framework: contention is 423 with Retry-After, in the negotiated content type."""

# ruff: noqa: ARG001, ARG002 - views take what the URLs give
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client, override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from testsite.views import AT_ONCE

pytest.importorskip("rest_framework")

from rest_framework.decorators import api_view, renderer_classes
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.views import exception_handler as default_handler
from rest_framework.viewsets import ViewSet

from syncguard import AcquisitionTimeout
from syncguard_django import current_fence, lock, locked
from syncguard_django.rest_framework import Locked, as_api_exception


class PlainRenderer(BaseRenderer):
    media_type = "text/x-plain"
    format = "plain"

    def render(self, data, accepted_media_type=None, renderer_context=None):
        return repr(data).encode()


RENDERERS = [JSONRenderer, PlainRenderer]
LOCK = {"key": "invoice:{pk}", "acquisition": AT_ONCE}


@api_view(["GET"])
@renderer_classes(RENDERERS)
@locked(**LOCK)
def function(request, pk):
    return Response({"fence": current_fence()})


@locked(**LOCK)
@api_view(["GET"])
@renderer_classes(RENDERERS)
def outside(request, pk):
    return Response({"fence": current_fence()})


class Method(APIView):
    renderer_classes = RENDERERS

    @locked(**LOCK)
    def get(self, request, pk):
        return Response({"fence": current_fence()})


@method_decorator(locked(**LOCK), name="dispatch")
class Dispatch(APIView):
    renderer_classes = RENDERERS

    def get(self, request, pk):
        return Response({"fence": current_fence()})


class Invoices(ViewSet):
    renderer_classes = RENDERERS

    @locked(**LOCK)
    def retrieve(self, request, pk):
        return Response({"fence": current_fence()})


class ByHand(APIView):
    """Uses ``lock()`` itself: only an exception handler can turn its error into a 423."""

    def get(self, request, pk):
        with lock(f"invoice:{pk}", acquisition=AT_ONCE) as held:
            return Response({"fence": held.fence})


router = SimpleRouter()
router.register("viewset", Invoices, basename="invoice")

urlpatterns = [
    path("function/<int:pk>/", function),
    path("outside/<int:pk>/", outside),
    path("method/<int:pk>/", Method.as_view()),
    path("dispatch/<int:pk>/", Dispatch.as_view()),
    path("by-hand/<int:pk>/", ByHand.as_view()),
    path("", include(router.urls)),
]

VIEWS = ["function", "outside", "method", "dispatch", "viewset"]

pytestmark = pytest.mark.urls(__name__)


@pytest.mark.parametrize("view", VIEWS)
def test_a_free_lock_is_held_while_the_view_runs(backend, view):
    answer = Client().get(f"/{view}/42/")
    assert (answer.status_code, answer.json()) == (200, {"fence": "000000000000001"})
    assert not backend.is_locked("invoice:42")


@pytest.mark.parametrize("view", VIEWS)
def test_contention_is_423_with_retry_after_in_json(backend, view):
    with backend.acquire("invoice:42", ttl_ms=20_000):
        answer = Client().get(f"/{view}/42/")
    assert answer.status_code == 423
    assert answer["Content-Type"] == "application/json"
    assert answer.json() == {"detail": "This resource is locked. Try again later."}
    assert 1 <= int(answer["Retry-After"]) <= 20


@pytest.mark.parametrize("view", VIEWS)
def test_the_response_to_contention_has_the_requested_content_type(backend, view):
    with backend.acquire("invoice:42", ttl_ms=20_000):
        answer = Client().get(f"/{view}/42/", headers={"accept": "text/x-plain"})
    assert answer.status_code == 423
    assert answer["Content-Type"].startswith("text/x-plain")
    assert b"This resource is locked" in answer.content


def test_with_the_exception_handler_contention_in_lock_is_423_too(backend):
    with backend.acquire("invoice:42", ttl_ms=20_000):
        with pytest.raises(AcquisitionTimeout):
            Client().get("/by-hand/42/")
        handler = "syncguard_django.rest_framework.exception_handler"
        with override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": handler}):
            answer = Client().get("/by-hand/42/")
            missing = Client().post("/by-hand/42/")
    assert answer.status_code == 423
    assert answer.json() == {"detail": "This resource is locked. Try again later."}
    assert 1 <= int(answer["Retry-After"]) <= 20
    assert missing.status_code == 405, "other errors are the framework's"


def own_handler(error, context):
    response = default_handler(as_api_exception(error), context)
    response.data = {"error": response.data["detail"].code}
    return response


@pytest.mark.parametrize("view", [*VIEWS, "by-hand"])
def test_the_projects_own_handler_produces_the_response(backend, view):
    chosen = {"EXCEPTION_HANDLER": own_handler}
    with override_settings(REST_FRAMEWORK=chosen), backend.acquire("invoice:42", ttl_ms=20_000):
        answer = Client().get(f"/{view}/42/")
    assert (answer.status_code, answer.json()) == (423, {"error": "locked"})


def test_for_an_error_without_a_key_retry_after_is_the_ttl(backend):
    error = as_api_exception(AcquisitionTimeout())
    assert isinstance(error, Locked)
    assert error.wait == 30


def test_without_rest_framework_it_is_not_imported():
    code = (
        "import sys; sys.modules['rest_framework'] = None\n"
        "import django; django.setup()\n"
        "from syncguard_django.locked_response import refusal\n"
        "assert refusal(print, (), {}, 3).status_code == 423\n"
        "assert 'syncguard_django.rest_framework' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=_environment())


def _environment():
    folder = str(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": folder, "DJANGO_SETTINGS_MODULE": "testsite.settings"}
