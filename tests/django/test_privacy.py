"""Nothing that is printed or shown contains a raw key, a lock id or Redis's password."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from queue import SimpleQueue

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.views.debug import SafeExceptionReporterFilter, technical_500_response

from syncguard import Acquisition, LockError
from syncguard.testing import RedisServer
from syncguard_django import current_lock, lock, locked, locks

pytestmark = pytest.mark.django_db

KEY = "patient:Eve:diagnosis"
PASSWORD = "hunter2-hunter2"
STATUS = "syncguard_status"


@pytest.fixture(scope="module")
def guarded_redis():
    with RedisServer(password=PASSWORD) as server:
        yield server


@pytest.fixture
def secrets(settings, guarded_redis):
    """A held lock on a Redis with a password: the texts that must not be shown."""
    settings.SYNCGUARD = {"default": {"LOCATION": guarded_redis.url, "KEY_PREFIX": "clinic"}}
    with locks["default"].acquire(KEY, ttl_ms=60_000, holder="ward-3") as held:
        yield [KEY, "Eve", held.lock_id, PASSWORD]


def assert_none_in(text, secrets):
    assert text
    for secret in secrets:
        assert secret not in text


def printed(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.suppress(SystemExit):  # findings, or a Redis that refuses
        call_command(STATUS, *arguments, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
@pytest.mark.parametrize("what", ["list", "key", "lock-id", "count", "check"])
def test_the_command_prints_no_secret(secrets, form, what):
    arguments = {
        "list": [],
        "key": ["--key", KEY],
        "lock-id": ["--lock-id", secrets[2]],
        "count": ["--count"],
        "check": ["--check"],
    }[what]
    assert_none_in(printed(*arguments, "--format", form), secrets)


def test_the_command_prints_no_secret_of_a_redis_that_refuses(settings, secrets, guarded_redis):
    wrong = guarded_redis.url.replace(PASSWORD, "wrong-password")
    settings.SYNCGUARD = {"default": {"LOCATION": wrong}}
    for arguments in ([], ["--check"], ["--key", KEY], ["--lock-id", secrets[2]], ["--count"]):
        assert_none_in(printed(*arguments), [*secrets, "wrong-password"])


def test_the_pages_show_no_secret(secrets, caplog):
    User.objects.create_superuser("root")
    client = Client()
    client.force_login(User.objects.get())
    info = locks["default"].lookup(key=KEY)
    url = reverse("admin:syncguard_django_lock_changelist")
    holder = {
        "using": "default",
        "key_hash": info.key_hash,
        "fence": info.fence,
        "lock_id_hash": info.lock_id_hash,
        "acquired_at_ms": info.acquired_at_ms,
    }
    with caplog.at_level(logging.DEBUG):
        found = client.post(f"{url}find/", {"using": "default", "key": KEY})
        shown = [
            client.get(url),
            client.get(url, {"q": info.key_hash}),
            found,
            client.get(found["Location"]),
            client.get(f"{url}release/", holder),
            client.post(f"{url}release/", holder, follow=True),
            client.get("/admin/"),
        ]
    for response in shown:
        headers = "".join(f"{name}: {value}\n" for name, value in response.items())
        assert_none_in(headers + response.content.decode(), secrets)
    assert_none_in(caplog.text, secrets)


# Django's debug page shows the settings and the variables of every frame.


@pytest.fixture
def debug_page(settings):
    settings.DEBUG = True
    client = Client(raise_request_exception=False)

    def visit():
        response = client.get("/broken/")
        assert response.status_code == 500
        html = response.content.decode()
        assert "SYNCGUARD" in html
        return html

    return visit


def test_the_debug_page_does_not_show_the_password_when_redis_is_down(settings, debug_page):
    location = f"redis://ann:{PASSWORD}@127.0.0.1:1/0"
    settings.SYNCGUARD = {"default": {"LOCATION": location, "HASH_SECRET": PASSWORD}}
    assert_none_in(debug_page(), [PASSWORD])


def test_the_debug_page_does_not_show_the_password_of_another_address(settings, debug_page):
    options = {"listen_url": f"postgresql://ann:{PASSWORD}@127.0.0.1:1/shop"}
    location = "postgresql://127.0.0.1:1/shop"
    settings.SYNCGUARD = {"default": {"LOCATION": location, "OPTIONS": options}}
    html = debug_page()
    assert "listen_url" in html
    assert_none_in(html, [PASSWORD])


def test_the_debug_page_does_not_show_a_password_that_redis_refused(
    settings, debug_page, guarded_redis
):
    location = guarded_redis.url.replace(PASSWORD, "wrong-password")
    settings.SYNCGUARD = {"default": {"LOCATION": location}}
    html = debug_page()
    assert "AuthFailed" in html
    assert_none_in(html, ["wrong-password"])


@pytest.mark.parametrize(
    "entry",
    [
        {"LOCATION": f"redis://host:{PASSWORD}/0"},
        {"LOCATION": f"redis://:{PASSWORD}@host/0", "OPTIONS": {"nonsense": 1}},
        {"LOCATION": f"redis://:{PASSWORD}@host/0", "KEY_PREFIX": "x" * 1000},
        {"LOCATION": f"redis://:{PASSWORD}@host/0", "BACKEND": "nowhere.Backend"},
        {"LOCATION": f"redis://:{PASSWORD}@host/0", "TTL": 1},
        {"LOCATION": "redis://host/0", "OPTIONS": {"password": PASSWORD, "nonsense": 1}},
    ],
)
def test_the_debug_page_does_not_show_the_password_of_a_wrong_setting(settings, debug_page, entry):
    settings.SYNCGUARD = {"default": entry}
    assert_none_in(debug_page(), [PASSWORD])


def test_settings_that_django_prints_elsewhere_hide_the_password_too(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": f"redis://:{PASSWORD}@host/0"}}
    assert_none_in(repr(SafeExceptionReporterFilter().get_safe_settings()), [PASSWORD])


def test_hiding_does_not_change_the_address_in_the_settings(settings):
    location = f"redis://:{PASSWORD}@host/0"
    settings.SYNCGUARD = {"default": {"LOCATION": location}}
    assert settings.SYNCGUARD["default"]["LOCATION"] == location


def test_an_error_of_a_lock_prints_no_secret(secrets):
    at_once = Acquisition(max_retries=0, timeout_ms=60_000)
    with pytest.raises(LockError) as raised, lock(KEY, acquisition=at_once):
        pass
    assert_none_in(f"{raised.value} {raised.value!r}", secrets)


# -- the variables of our frames ------------------------------------------------------------------


@pytest.mark.parametrize("path", ["settle", "asettle", "class", "dispatch", "adispatch"])
def test_the_debug_page_of_a_dead_redis_does_not_show_the_key(settings, path):
    """The frames of Django show the argument of the view, and not the key made from it."""
    settings.DEBUG = True
    settings.SYNCGUARD = {"default": {"LOCATION": f"redis://:{PASSWORD}@127.0.0.1:1/0"}}
    response = Client(raise_request_exception=False).get(f"/{path}/771234/")
    assert response.status_code == 500
    html = response.content.decode()
    assert "ServiceUnavailable" in html
    assert "771234" in html
    assert_none_in(html, ["invoice:771234", PASSWORD])


def test_the_debug_page_of_a_view_that_fails_under_its_lock_does_not_show_the_key(
    settings, guarded_redis, rf
):
    settings.SYNCGUARD = {"default": {"LOCATION": guarded_redis.url}}
    seen = SimpleQueue()  # its repr does not show what it holds

    @locked(key="invoice:{invoice_id}")
    def settle(request, invoice_id):  # noqa: ARG001
        seen.put(current_lock().lock_id)
        raise ValueError

    try:
        settle(rf.get("/"), invoice_id=771234)
    except ValueError:
        html = technical_500_response(rf.get("/"), *sys.exc_info()).content.decode()
    assert "771234" in html
    assert_none_in(html, [f"invoice:{771234}", seen.get(), PASSWORD])
