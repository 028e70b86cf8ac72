"""Locks of Django and of Celery in one process share the stack of locks and the key templates."""

from __future__ import annotations

import asyncio
import enum
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

import syncguard
import syncguard_celery
import syncguard_django
from syncguard import Acquisition, LockError, current_fence, current_lock, lock
from syncguard_celery import inherited_fence, locked_task
from syncguard_django import locked, locks

ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@pytest.fixture
def app(app, settings, syncguard_redis):
    """The app with the locks of Django's default alias, which is the default. Fences begin at 1."""
    settings.SYNCGUARD = {"default": {"LOCATION": syncguard_redis.url, "FENCE_FLOOR": None}}
    app.conf.syncguard_backend = None
    return app


class Color(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    "value",
    [
        *("red", 7, Color.RED, Level.HIGH, (1, 2), [1, 2], None, True, uuid.UUID(int=7)),
        *(date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        Decimal("1.50"),
    ],
    ids=repr,
)
def test_a_view_and_a_task_with_one_template_exclude_each_other(app, deliver, value):
    template = "item:{x}"

    @locked_task(app=app, name="t", key=template, on_contention="skip", skip_result="excluded")
    def task(x):
        return elsewhere.submit(inner_view, request, value).result().status_code

    @locked(key=template, acquisition=ONCE)
    def inner_view(request, x):
        return HttpResponse(status=200)

    @locked(key=template)
    def view(request, x):
        task.delay(x)
        return elsewhere.submit(deliver).result().result

    request = RequestFactory().get("/")
    with ThreadPoolExecutor(2) as elsewhere:
        assert view(request, value) == "excluded"
    with ThreadPoolExecutor(2) as elsewhere:
        task.delay(value)
        assert deliver().result == 423


def test_both_adapters_export_the_functions_of_the_core():
    for adapter in (syncguard_celery, syncguard_django):
        assert adapter.current_lock is syncguard.current_lock
        assert adapter.current_fence is syncguard.current_fence


class TestTheKeyOfTheRunningTask:
    @pytest.mark.parametrize("take", ["django", "core"])
    def test_a_function_that_is_not_reentrant_is_refused_inside_the_task(self, app, take):
        @locked(key="invoice:{n}")
        def settle(n):
            return n

        def settle_with_core_lock(n):
            with lock(locks["default"], f"invoice:{n}"):
                return n

        @locked_task(app=app, name="task", key="invoice:{n}")
        def task(n):
            return (settle if take == "django" else settle_with_core_lock)(n)

        with pytest.raises(LockError, match="reentrant=True") as caught:
            task(7)
        assert caught.value.code == "InvalidArgument"
        assert not locks["default"].is_locked("invoice:7")

    def test_a_reentrant_function_enters_the_lock_again(self, app):
        @locked(key="invoice:{n}", reentrant=True)
        def settle(n):
            with syncguard_django.lock(f"invoice:{n}", reentrant=True) as held:
                return held.fence, current_fence()

        @locked_task(app=app, name="task", key="invoice:{n}")
        def task(n):
            return (*settle(n), current_fence(), locks["default"].is_locked(f"invoice:{n}"))

        assert task(7) == (*["000000000000001"] * 3, True)
        assert not locks["default"].is_locked("invoice:7")

    def test_a_task_may_be_called_from_a_view_that_holds_its_lock(self, app):
        @locked_task(app=app, name="task", key="invoice:{n}")
        def task(n):
            return current_fence()

        @locked(key="invoice:{n}")
        def view(request, n):
            return task(n), task.apply((n,)).get()

        assert view(RequestFactory().get("/"), 7) == ("000000000000001", "000000000000001")

    def test_a_task_that_is_not_reentrant_is_refused_inside_itself(self, app):
        @locked_task(app=app, name="task", key="invoice:{n}", reentrant=False)
        def task(n):
            return task(n) if n else None

        with pytest.raises(LockError, match="reentrant=True") as caught:
            task(7)
        assert caught.value.code == "InvalidArgument"

    def test_reentrant_must_be_true_or_false(self, app):
        with pytest.raises(LockError, match="reentrant must be True or False"):
            locked_task(app=app, key="k", reentrant="yes")


def test_current_lock_and_current_fence_are_shared_by_both_adapters(app):
    @locked(key="view")
    def view():
        return syncguard_celery.current_fence(), current_lock()

    @locked_task(app=app, name="task", key="task")
    def task():
        return syncguard_django.current_fence(), view()[1] is not current_lock()

    assert view()[0] == "000000000000001"
    assert task() == ("000000000000001", True)
    assert current_lock() is None


def test_what_is_published_under_a_view_carries_its_fence(app, deliver):
    @app.task(name="child", shared=False)
    def child():
        return inherited_fence("view"), inherited_fence("core")

    @locked(key="view")
    def view():
        with lock(locks["default"], "core"):
            child.delay()

    view()
    assert deliver().result == ("000000000000001", "000000000000001")


def test_an_asyncio_function_enters_its_lock_again(app):
    @locked(key="k", reentrant=True)
    async def descend(depth):
        inner = await descend(depth - 1) if depth else set()
        return {current_fence()} | inner

    async def main():
        async with syncguard_django.alock("k", reentrant=True) as held:
            with pytest.raises(LockError, match="reentrant=True"):
                await syncguard_django.alock("k").__aenter__()
            return held.fence, await descend(2)

    assert asyncio.run(main()) == ("000000000000001", {"000000000000001"})
