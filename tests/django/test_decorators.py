"""The decorator: functions and views, plain and async, and what a caller without the lock gets."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings

import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient, Client, RequestFactory
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy
from testsite.models import Account
from testsite.views import AT_ONCE

from syncguard import LockError, LockLost, ShortTTLWarning
from syncguard_django import alocks, current_fence, current_lock, lock, locked, locks


@locked(key="invoice:{invoice_id}", acquisition=AT_ONCE, holder="settle")
def settle(invoice_id):
    return locks["default"].lookup(key=f"invoice:{invoice_id}").holder


def test_a_function_holds_the_lock_of_its_arguments_while_it_runs(backend):
    assert settle(42) == "settle"
    assert not backend.is_locked("invoice:42")


def test_a_function_that_cannot_get_its_lock_raises(backend):
    with backend.acquire("invoice:42", ttl_ms=60_000):
        with pytest.raises(LockError) as raised:
            settle(invoice_id=42)
    assert raised.value.code == "AcquisitionTimeout"


def test_a_function_keeps_its_name_and_its_errors(backend):
    @locked(key="report")
    def report():
        """Builds the report."""
        raise ZeroDivisionError

    assert report.__name__ == "report"
    assert report.__doc__ == "Builds the report."
    with pytest.raises(ZeroDivisionError):
        report()
    assert not backend.is_locked("report")


def test_the_fence_is_available_inside_the_function(configure):
    configure()

    @locked(key="outer")
    def outer():
        return current_lock().fence, inner(), current_lock().fence

    @locked(key="inner")
    def inner():
        return current_lock().fence

    inner()
    assert outer() == ("000000000000001", "000000000000002", "000000000000001")
    assert current_lock() is None


def test_an_async_function_holds_its_lock_natively(configure):
    configure()

    @locked(key="invoice:{invoice_id}", acquisition=AT_ONCE)
    async def asettle(invoice_id):
        assert await alocks["default"].is_locked(f"invoice:{invoice_id}")
        with pytest.raises(LockError) as raised:
            await asyncio.create_task(asettle(invoice_id))
        assert raised.value.code == "AcquisitionTimeout"
        return current_lock().fence

    assert asyncio.run(asettle(42)) == "000000000000001"
    assert not locks["default"].is_locked("invoice:42")


def test_a_nested_call_with_the_same_key_is_refused_or_reentrant(configure):
    configure()

    @locked(key="invoice:{invoice_id}")
    def outer(invoice_id, inner):
        return inner(invoice_id)

    @locked(key="invoice:{invoice_id}", reentrant=True)
    def again(invoice_id):
        with lock(f"invoice:{invoice_id}", reentrant=True) as held:
            return held.fence, current_fence()

    with pytest.raises(LockError, match="reentrant=True") as raised:
        outer(42, settle)
    assert raised.value.code == "InvalidArgument"
    assert outer(42, again) == ("000000000000002", "000000000000002")
    assert not locks["default"].is_locked("invoice:42")


# Keys: the core tests the templates; here are the cases that only Django has.


@pytest.mark.parametrize("template", ["{request.user}", "{account}"])
def test_a_model_in_a_key_is_refused_and_the_error_suggests_its_pk(configure, template):
    configure()

    @locked(key=template)
    def view(request, account): ...

    request = RequestFactory().get("/")
    request.user = SimpleLazyObject(lambda: User(pk=7, username="hunter2"))
    with pytest.raises(LockError, match=f"use a field of it, e.g. {template[:-1]}.pk}}") as raised:
        view(request, Account(pk=7))
    assert raised.value.code == "InvalidArgument"
    assert "hunter2" not in str(raised.value)


def test_the_pk_of_a_lazy_user_can_be_in_a_key(configure):
    configure()

    @locked(key="{request.user.pk}:{title}")
    def view(request, title):
        return locks["default"].is_locked(f"{request.user.pk}:{title}")

    request = RequestFactory().get("/")
    request.user = SimpleLazyObject(lambda: User(pk=7))
    assert view(request, gettext_lazy("yes"))
    assert locks["default"].acquire("7:yes").fence == "000000000000002"


def test_an_object_whose_text_is_a_memory_address_is_refused_in_a_key(configure):
    configure()

    @locked(key="{thing}")
    def use(thing): ...

    with pytest.raises(LockError, match=r"{thing} has no stable string form"):
        use(object())


def test_a_generator_is_refused(configure):
    configure()

    def rows():
        yield 1

    with pytest.raises(LockError, match="cannot lock a generator function"):
        locked(key="rows")(rows)


def test_decorating_reads_no_setting(settings):
    settings.SYNCGUARD = None

    @locked(key="x")
    def later(): ...

    assert callable(later)


def test_a_decorated_function_follows_a_changed_setting(configure):
    configure(KEY_PREFIX="before")
    assert settle(42) == "settle"
    configure(KEY_PREFIX="after")
    assert settle(42) == "settle"


# Views

VIEWS = ["/settle/42/", "/asettle/42/", "/class/42/", "/dispatch/42/", "/adispatch/42/"]


@pytest.mark.parametrize("url", VIEWS)
def test_a_view_is_locked(backend, url):
    assert Client().get(url).content == b"000000000000001"
    assert not backend.is_locked("invoice:42")


@pytest.mark.parametrize("url", VIEWS)
def test_a_view_that_cannot_get_its_lock_responds_423_with_retry_after(backend, url):
    began = time.monotonic()
    with backend.acquire("invoice:42", ttl_ms=20_000):
        response = Client().get(url)
        elapsed_s = time.monotonic() - began
        assert Client().get(url.replace("42", "43")).status_code == 200
    assert response.status_code == 423
    assert 20 - elapsed_s - 1 <= int(response["Retry-After"]) <= 20


def test_retry_after_is_at_most_the_ttl_of_the_view(backend):
    with backend.acquire("invoice:42", ttl_ms=3_600_000):
        assert Client().get("/settle/42/")["Retry-After"] == "30"


@pytest.mark.parametrize("url", ["/settle/42/", "/asettle/42/"])
def test_async_and_plain_views_are_locked_under_asgi(configure, url):
    configure()

    async def visit():
        client = AsyncClient()
        free = await client.get(url)
        async with await alocks["default"].acquire("invoice:42", ttl_ms=20_000):
            busy = await client.get(url)
        return free, busy

    free, busy = asyncio.run(visit())
    assert (free.status_code, busy.status_code) == (200, 423)
    assert free.content == b"000000000000001"
    assert int(busy["Retry-After"]) <= 20


def test_many_async_requests_at_once_get_the_lock_one_by_one(configure):
    configure()

    async def visit():
        client = AsyncClient()
        return await asyncio.gather(*(client.get("/asettle/42/") for _ in range(10)))

    answers = [(r.status_code, r.content) for r in asyncio.run(visit())]
    fences = [content for status, content in answers if status == 200]
    assert fences
    assert len(set(fences)) == len(fences)


def test_the_timeout_of_a_nested_lock_is_not_a_423_of_the_view(configure):
    configure()
    from django.test import RequestFactory

    @locked(key="outer")
    def view(request):
        assert request.method == "GET"
        with locks["default"].acquire("inner", ttl_ms=60_000):
            settle_inner()

    @locked(key="inner", acquisition=AT_ONCE)
    def settle_inner(): ...

    with pytest.raises(LockError):
        view(RequestFactory().get("/"))


@pytest.mark.parametrize("is_async", [False, True])
def test_if_the_lookup_of_the_holder_fails_the_response_is_still_423(
    backend, monkeypatch, is_async
):
    def gone(*_args, **_kwargs):
        raise LockError("ServiceUnavailable")

    kept = backend.acquire("invoice:42", ttl_ms=20_000)
    if is_async:
        from syncguard.redis import AsyncRedisBackend

        monkeypatch.setattr(AsyncRedisBackend, "lookup", gone)
    else:
        monkeypatch.setattr(type(backend), "lookup", gone)
    response = Client().get("/asettle/42/" if is_async else "/settle/42/")
    assert (response.status_code, response["Retry-After"]) == (423, "30")
    kept.release()


def test_a_view_whose_redis_is_down_does_not_respond_423(configure, syncguard_redis):
    configure()
    syncguard_redis.kill()
    with pytest.raises(LockError) as raised:
        Client().get("/settle/42/")
    assert raised.value.code == "ServiceUnavailable"


def test_the_short_ttl_warning_points_at_the_function_or_the_block(configure):
    configure(TTL_MS=997)

    @locked(key="a")
    def of_the_alias(): ...

    @locked(key="b", ttl_ms=998)
    async def of_its_own(): ...

    def block():
        with lock("c", 999):
            pass

    calls = (of_the_alias, lambda: asyncio.run(of_its_own()), block)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for call in calls:
            with contextlib.suppress(LockLost):  # if the machine was busy for a second
                call()
    functions = [of_the_alias.__wrapped__, of_its_own.__wrapped__]
    lines = [function.__code__.co_firstlineno for function in functions]
    lines.append(block.__code__.co_firstlineno + 1)
    assert [(w.category, w.filename, w.lineno) for w in told] == [
        (ShortTTLWarning, __file__, line) for line in lines
    ]
