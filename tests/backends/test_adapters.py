"""A third-party backend works with Django's settings, pages and commands, and with Celery tasks."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import re
from pathlib import Path

import dict_backend
import dict_backend_async
import pytest
from celery import Celery
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from testsite import visits

from syncguard import current_fence
from syncguard.backend import Finding, Location, SettingProblem
from syncguard_celery import locked_task
from syncguard_django import alock, alocks, lock, locks

HERE = Path(__file__).parent


@pytest.fixture(params=["dotted path", "scheme of an entry point"])
def shop(request, settings, install):
    """The test site with its locks in a dictionary."""
    dict_backend.STORES.clear()
    entry = {"LOCATION": "dict://shop", "KEY_PREFIX": "shop"}
    if request.param == "dotted path":
        entry["BACKEND"] = "dict_backend.DictBackend"
    else:
        install(dict="dict_backend:DictBackend")
    settings.SYNCGUARD = {"default": entry}
    return locks["default"]


@pytest.fixture
def bare(settings):
    """The test site with a backend that has the required parts only."""
    dict_backend.STORES.clear()
    entry = {"LOCATION": "bare://shop", "BACKEND": "bare_backend.BareBackend"}
    settings.SYNCGUARD = {"default": entry}
    return locks["default"]


def status(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = 0
    try:
        call_command("syncguard_status", *arguments, stdout=out, stderr=err)
    except SystemExit as ended:
        code = ended.code
    return out.getvalue(), err.getvalue(), code


def messages(**options):
    return {message.id: message.msg for message in run_checks(tags=["syncguard"], **options)}


@pytest.mark.parametrize("module", ["dict_backend", "dict_backend_async", "bare_backend"])
def test_the_backend_needs_public_names_only(module):
    tree = ast.parse((HERE / f"{module}.py").read_text())
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    public = {"syncguard.backend", "syncguard.backends", "syncguard.testing"}
    assert {name for name in used if name.startswith("syncguard")} <= public


def test_a_lock_of_the_settings_is_in_the_dictionary(shop):
    assert type(shop) is dict_backend.DictBackend
    with lock("invoice:42", auto_extend=True) as held:
        [info] = shop.page_raw().locks
        assert (info.key, info.fence) == ("invoice:42", held.fence)
        assert info.holder.startswith("tests.backends.test_adapters.")
    assert shop.count_live_locks() == 0


def test_the_asyncio_backend_uses_the_same_locks(shop):
    async def hold():
        assert type(alocks["default"]) is dict_backend_async.AsyncDictBackend
        async with alock("invoice:42"):
            return shop.is_locked("invoice:42")

    assert asyncio.run(hold()) is True
    assert not shop.is_locked("invoice:42")


@pytest.mark.usefixtures("shop")
def test_the_checks_report_nothing():
    assert messages() == messages(include_deployment_checks=True) == {}


@pytest.mark.usefixtures("shop")
def test_the_checks_name_an_option_that_the_backend_does_not_take(settings):
    entry = {**settings.SYNCGUARD["default"], "OPTIONS": {"size": "hunter2"}}
    settings.SYNCGUARD = {"default": entry}
    found = messages()
    assert list(found) == ["syncguard.E003"]
    assert "a dictionary has no option size" in found["syncguard.E003"]


@pytest.mark.usefixtures("shop")
def test_aliases_of_one_dictionary_whose_prefixes_overlap_are_a_warning(settings):
    entry = settings.SYNCGUARD["default"]
    settings.SYNCGUARD = {"one": entry, "two": entry}
    assert list(messages()) == ["syncguard.W001"]


def test_the_backend_cannot_use_a_cache_entry(settings):
    settings.CACHES = {"main": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    settings.SYNCGUARD = {"default": {"CACHE": "main", "BACKEND": "dict_backend.DictBackend"}}
    with pytest.raises(ImproperlyConfigured, match=r'\["CACHE"\] is not supported by this backend'):
        locks["default"]


def test_the_command_lists_counts_and_looks_up(shop):
    with lock("invoice:42", holder="worker-7"):
        out, _, code = status()
        assert re.split(r"\s{2,}", out.splitlines()[1])[:2] == [shop.hash("invoice:42"), "worker-7"]
        assert code == 0
        assert status("--count")[0] == "1\n"
        assert status("--key", "invoice:42")[2] == 0
    assert status("--key", "invoice:42")[2] == 1
    assert status()[0] == "No live locks.\n"


@pytest.mark.usefixtures("shop")
def test_the_command_shows_the_health_report_of_the_backend():
    with lock("invoice:42"):
        out, _, code = status("--check")
        [report] = json.loads(status("--check", "--format", "json")[0])
    assert code == 0
    assert out.splitlines() == [
        "default: healthy",
        "  server      a dictionary",
        "  live locks  1",
    ]
    assert report == {"alias": "default", "healthy": True, "liveLocks": 1, "findings": []}


def test_the_command_reports_a_store_that_is_down(shop):
    shop.store.is_down = True
    for arguments in ((), ("--check",), ("--count",), ("--key", "k")):
        out, err, code = status(*arguments)
        assert (out, code) == ("", 2)
        assert err.startswith("default: ServiceUnavailable: ")


@pytest.mark.django_db
def test_the_admin_lists_finds_and_releases_a_lock(shop):
    client = visits.visitor("view_lock", "release_lock")
    shop.acquire("invoice:42", 60_000, holder="worker-7")
    assert visits.rows(client) == [shop.hash("invoice:42")]
    assert "worker-7" in visits.page(client)

    found = visits.post(client, visits.FIND, using="default", key="invoice:42")
    assert "The lock of that key is held: fence 1" in visits.message_after(client, found)

    holder = visits.holder_of(shop.lookup(key="invoice:42"))
    assert client.get(visits.RELEASE, holder).status_code == 200
    freed = visits.post(client, visits.RELEASE, **holder)
    assert "Released the lock" in visits.message_after(client, freed)
    assert not shop.is_locked("invoice:42")


@pytest.fixture
def app():
    app = Celery("dict", broker="memory://", fixups=[], set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def test_a_task_is_locked_by_the_alias_of_django(shop, app):
    @locked_task(app=app, key="invoice:{number}", using="default", on_contention="skip")
    def settle(number):
        assert shop.is_locked(f"invoice:{number}")
        return current_fence()

    assert settle.delay(42).get() == "000000000000001"
    assert not shop.is_locked("invoice:42")
    with shop.acquire("invoice:42"):
        assert settle.delay(42).get() is None
    assert settle.delay(42).get() == "000000000000003"


def test_a_task_is_locked_by_a_url_of_the_app(install, app):
    install(dict="dict_backend:DictBackend")
    app.conf.syncguard_backend = "dict://tasks"

    @locked_task(app=app, key="invoice:{number}")
    def settle(number):
        [info] = dict_backend.STORES["dict://tasks"].locks.values()
        return info.key, number

    assert settle.delay(42).get() == ("invoice:42", 42)


def test_a_backend_without_a_list_can_lock_and_look_up(bare):
    with lock("invoice:42", holder="worker-7"):
        assert "worker-7" in status("--key", "invoice:42")[0]
    assert not bare.is_locked("invoice:42")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--limit=5", "BareBackend does not list its locks"),
        ("--count", "BareBackend does not list its locks"),
        ("--check", "BareBackend does not report its health"),
    ],
)
def test_the_command_says_in_one_line_what_the_backend_does_not_offer(argument, said):
    out, err, code = status(argument)
    assert (out, err, code) == ("", f"default: InvalidArgument: {said}\n", 2)


@pytest.mark.django_db
@pytest.mark.usefixtures("bare")
def test_the_admin_says_that_the_backend_does_not_list():
    page = visits.page(visits.visitor("view_lock"))
    assert "BareBackend does not list its locks" in page


@pytest.mark.usefixtures("bare")
def test_a_backend_without_an_asyncio_class_is_an_error_in_asyncio():
    async def ask():
        return alocks["default"]

    with pytest.raises(ImproperlyConfigured, match="BareBackend names no asyncio twin"):
        asyncio.run(ask())


class ReadsSettings(dict_backend.DictBackend):
    """Reads its own settings."""

    @classmethod
    def read_location(cls, given):
        if given.location == "dict://nowhere":
            return SettingProblem("LOCATION", "must name a dictionary")
        findings = (
            Finding("no-password", "has no password.", in_production=True),
            Finding("other", "keeps its locks in memory.", "Use a server."),
        )
        quick = Location(f"{given.location}-quickly")
        return Location(given.location, findings=findings, quick=quick)


@pytest.fixture
def reads_settings(settings, monkeypatch):
    monkeypatch.setattr(dict_backend, "ReadsSettings", ReadsSettings, raising=False)

    def configure(location):
        entry = {
            "BACKEND": "dict_backend.ReadsSettings",
            "LOCATION": location,
            "KEY_PREFIX": "shop",
        }
        settings.SYNCGUARD = {"default": entry}

    return configure


def test_findings_of_a_backend_in_its_settings_are_check_messages(reads_settings):
    reads_settings("dict://shop")
    found = {"syncguard.W006": 'SYNCGUARD["default"] keeps its locks in memory.'}
    assert messages() == found
    found["syncguard.W011"] = 'SYNCGUARD["default"] has no password.'
    assert messages(include_deployment_checks=True) == found


def test_a_setting_problem_is_reported_with_the_text_of_the_backend(reads_settings):
    reads_settings("dict://nowhere")
    with pytest.raises(ImproperlyConfigured, match=r'\["LOCATION"\] must name a dictionary'):
        locks["default"]


def test_pages_and_commands_use_the_quick_location_of_a_backend(reads_settings):
    reads_settings("dict://shop")
    assert locks["default"].store is dict_backend.STORES["dict://shop"]
    assert locks.inspector("default").store is dict_backend.STORES["dict://shop-quickly"]
