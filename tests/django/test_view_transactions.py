"""Views with ATOMIC_REQUESTS: the lock is around the transaction, or is held until its end."""

# ruff: noqa: ARG001 - fixtures act by being named
from __future__ import annotations

import asyncio
import warnings

import pytest
from django.conf import settings
from django.db import connections
from django.db.transaction import atomic
from django.test import Client, RequestFactory, override_settings
from testsite.views import AT_ONCE

from syncguard import LockError, LockLost, current_lock
from syncguard_django import LockOrderWarning, lock_order_warning, locked, locks

pytest.importorskip("rest_framework", reason="Django REST framework is not installed")

from testsite import transaction_views as views

REACHED = ["plain", "wrapped", "dispatch", "above_api_view", "twice", "calls_another"]
NOT_REACHED = ["method", "below_api_view", "action", "hidden", "calls_a_locked_view"]
ASYNC = ["async", "async_method", "async_dispatch"]


@pytest.fixture
def site(settings, backend, transactional_db, monkeypatch):
    settings.ROOT_URLCONF = "testsite.transaction_views"
    monkeypatch.setattr(lock_order_warning, "_warned", set())
    views.in_hooks.clear()
    views.before.clear()
    return backend


@pytest.fixture
def atomic_requests(site, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    return site


def visit(name):
    return Client().get(f"/{name}/42/")


@pytest.mark.parametrize("name", REACHED)
def test_the_lock_is_acquired_before_the_transaction_begins(atomic_requests, name, monkeypatch):
    opened_at = []
    begin = connections["default"].set_autocommit

    def spy(autocommit, *args, **kwargs):
        if not autocommit:
            opened_at.append(atomic_requests.is_locked("invoice:42"))
        return begin(autocommit, *args, **kwargs)

    monkeypatch.setattr(connections["default"], "set_autocommit", spy)
    report = visit(name).json()
    assert report == {"locked": True, "atomic": True, "blocks": 1}
    assert opened_at == [name not in ("twice", "calls_another")]


@pytest.mark.parametrize("name", REACHED)
def test_the_lock_is_released_after_the_commit_and_before_the_hooks(atomic_requests, name):
    assert visit(name).status_code == 200
    assert views.in_hooks == [False]
    assert atomic_requests.count_live_locks() == 0


@pytest.mark.parametrize("name", [*REACHED, *NOT_REACHED])
def test_without_atomic_requests_there_is_no_transaction_and_no_warning(site, name):
    report = visit(name).json()
    assert report == {"locked": True, "atomic": False, "blocks": 0}
    assert site.count_live_locks() == 0


def test_decorators_above_the_lock_run_before_the_transaction(atomic_requests):
    visit("wrapped")
    assert views.before == [False]


@pytest.mark.parametrize("name", ["opted_out_below", "opted_out_above"])
def test_a_view_that_opted_out_has_no_transaction(atomic_requests, name):
    report = visit(name).json()
    assert report == {"locked": True, "atomic": False, "blocks": 0}


def test_the_users_own_set_is_not_changed(atomic_requests):
    @atomic
    def view(request): ...

    view._non_atomic_requests = {"other"}
    locked_view = locked(key="x")(view)
    assert "default" in locked_view._non_atomic_requests
    assert view._non_atomic_requests == {"other"}
    assert set(iter(locked_view._non_atomic_requests)) == {"other"}


def test_a_view_that_raises_is_rolled_back_and_releases(atomic_requests):
    with pytest.raises(ZeroDivisionError):
        visit("broken")
    assert views.in_hooks == []
    assert atomic_requests.count_live_locks() == 0


def test_until_block_holds_the_lock_around_the_transaction_and_its_hooks(atomic_requests):
    assert visit("until_block").json() == {"locked": True, "atomic": True, "blocks": 1}
    assert views.in_hooks == [True]
    assert atomic_requests.count_live_locks() == 0


@pytest.mark.usefixtures("atomic_requests")
def test_a_view_that_cannot_get_its_lock_opens_no_transaction(monkeypatch):
    with lock_at_once(), locks["default"].acquire("invoice:42", ttl_ms=60_000):
        with monkeypatch.context() as patch:
            patch.setattr(connections["default"], "set_autocommit", None)  # opens a transaction
            assert visit("plain").status_code == 423


def lock_at_once():
    """Do not wait for the lock, although the setting lets views wait."""
    at_once = {"max_retries": 0, "timeout_ms": 60_000}
    entry = {**settings.SYNCGUARD["default"], "ACQUISITION": at_once}
    return override_settings(SYNCGUARD={"default": entry})


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("name", ["below_api_view", "action"])
def test_a_view_of_rest_framework_responds_423_too(name):
    with lock_at_once(), locks["default"].acquire("invoice:42", ttl_ms=60_000):
        assert visit(name).status_code == 423


@pytest.mark.parametrize("name", NOT_REACHED)
def test_a_lock_inside_the_transaction_warns_once_naming_the_view(atomic_requests, name):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        visit(name)
        visit(name)
    (warning,) = seen
    assert warning.category is LockOrderWarning
    assert "testsite.transaction_views." in str(warning.message)
    assert "ATOMIC_REQUESTS" in str(warning.message)


@pytest.mark.filterwarnings("ignore::syncguard_django.LockOrderWarning")
@pytest.mark.parametrize("name", [*NOT_REACHED, "inside"])
def test_a_lock_inside_the_transaction_lasts_until_the_commit(atomic_requests, name):
    report = visit(name).json()
    assert report == {"locked": True, "atomic": True, "blocks": 1}
    assert views.in_hooks == [False]
    assert atomic_requests.count_live_locks() == 0


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_view_raises_djangos_own_error(atomic_requests, name):
    with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
        visit(name)
    assert atomic_requests.count_live_locks() == 0


@pytest.mark.parametrize("name", ["async", "async_method"])
def test_without_atomic_requests_an_async_view_runs(site, name):
    assert visit(name).content == b"ran"


def test_a_lock_that_would_not_cover_an_async_view_is_refused(site):
    with pytest.raises(LockError, match="lock the async def itself"):
        visit("async_dispatch")


def test_an_async_class_that_is_locked_as_a_view_is_locked_natively(site):
    view = locked(key="outer:{invoice_id}")(views.AsyncMethod.as_view())
    request = RequestFactory().get("/")
    assert asyncio.run(view(request, invoice_id=43)).content == b"ran"


def test_a_view_that_is_called_directly_gets_no_transaction(atomic_requests):
    """As in Django: only the function that the resolver found gets a transaction."""
    response = views.plain(RequestFactory().get("/"), 42)
    assert b'"atomic": false' in response.content


def test_an_async_function_cannot_hold_until_the_transaction():
    async def settle(): ...

    with pytest.raises(LockError, match="not possible for an async def"):
        locked(key="x", until="transaction")(settle)
    assert locked(key="x", until="block")(settle)


def test_a_locked_function_outside_of_views_lasts_until_the_commit(site):
    @locked(key="invoice:42", acquisition=AT_ONCE)
    def settle():
        return locks["default"].is_locked("invoice:42")

    with atomic():
        assert settle()
        assert site.is_locked("invoice:42")
    assert not site.is_locked("invoice:42")


def test_a_view_whose_lock_was_lost_is_rolled_back(atomic_requests, monkeypatch):
    def lose(_invoice_id):
        connections["default"].cursor().execute("CREATE TABLE half_done (n INTEGER)")
        held = current_lock()
        atomic_requests.release(held.lock_id)
        held.deadline_ms = 0

    monkeypatch.setattr(views, "report", lose)
    with pytest.raises(LockLost):
        visit("plain")
    assert "half_done" not in connections["default"].introspection.table_names()
