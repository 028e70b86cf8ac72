"""Responses whose body is produced after the view: streaming is refused, templates are allowed."""

# ruff: noqa: ARG001 - views take a request
from __future__ import annotations

import asyncio
import io

import pytest
from django.http import FileResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import RequestFactory

from syncguard import InvalidArgument
from syncguard_django import lock, locked, locks

REQUEST = RequestFactory().get("/")


def rows(ran):
    ran.append("the body")
    yield b"1"


@pytest.mark.django_db  # closing a response closes old connections
@pytest.mark.parametrize("decorate", [locked(key="report"), lambda view: lock("report")(view)])
def test_a_streaming_response_is_refused_and_its_body_never_runs(backend, decorate):
    ran = []

    def view(request):
        return StreamingHttpResponse(rows(ran))

    with pytest.raises(InvalidArgument, match="use lock\\(\\) inside the generator"):
        decorate(view)(REQUEST)
    assert ran == []
    assert not backend.is_locked("report")


def test_an_async_streaming_response_is_refused_too(configure):
    configure()

    async def body():
        yield b"1"

    @locked(key="report")
    async def view(request):
        return StreamingHttpResponse(body())

    with pytest.raises(InvalidArgument, match="streaming response"):
        asyncio.run(view(REQUEST))
    assert not locks["default"].is_locked("report")


@pytest.mark.django_db  # closing a response closes old connections
def test_a_file_response_is_allowed(backend):
    @locked(key="report")
    def view(request):
        return FileResponse(io.BytesIO(b"the report"))

    assert b"".join(view(REQUEST)) == b"the report"


def test_the_generator_of_a_body_may_acquire_the_lock_itself(backend):
    def body():
        with lock("report"):
            yield str(backend.is_locked("report")).encode()

    response = StreamingHttpResponse(body())
    assert b"".join(response) == b"True"
    assert not backend.is_locked("report")


class Locked(SimpleTemplateResponse):
    """Its template shows whether the lock is held."""

    @property
    def rendered_content(self):
        return str(locks["default"].is_locked("report"))


def test_a_template_is_rendered_after_the_lock_unless_the_view_renders_it(backend):
    @locked(key="report")
    def later(request):
        return Locked("unused.html")

    @locked(key="report")
    def inside(request):
        return Locked("unused.html").render()

    assert later(REQUEST).render().content == b"False"
    assert inside(REQUEST).content == b"True"
