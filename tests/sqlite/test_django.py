"""A Django project whose locks are in a SQLite file, or in memory: by one setting."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import subprocess
import sys

import pytest
from celery import Celery
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from testsite import visits

from syncguard import current_fence
from syncguard.backend import GivenLocation, SettingProblem
from syncguard.memory import MemoryStore
from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend
from syncguard_celery import locked_task
from syncguard_django import alock, alocks, lock, locks

BACKEND = "syncguard.sqlite.SQLiteBackend"


@pytest.fixture(params=["path", "text", "URL", "memory"])
def shop(request, settings, path):
    """The test site, with its locks where the setting says."""
    entry = {
        "path": {"BACKEND": BACKEND, "LOCATION": path},
        "text": {"BACKEND": BACKEND, "LOCATION": str(path)},
        "URL": {"LOCATION": f"sqlite:///{path}"},
        "memory": {"LOCATION": "memory://shop"},
    }[request.param]
    settings.SYNCGUARD = {"default": {**entry, "KEY_PREFIX": "shop"}}
    yield locks["default"]
    locks.reset()
    MemoryStore.named("shop").clear()


def configure(settings, **entry):
    settings.SYNCGUARD = {"default": {"BACKEND": BACKEND, "KEY_PREFIX": "shop", **entry}}


def status(*arguments):
    out = io.StringIO()
    code = 0
    try:
        call_command("syncguard_status", *arguments, stdout=out)
    except SystemExit as ended:
        code = ended.code
    return out.getvalue(), code


def messages(**options):
    return {message.id: message.msg for message in run_checks(tags=["syncguard"], **options)}


def test_a_lock_of_the_settings_is_held_in_blocking_and_asyncio_code(shop):
    with lock("invoice:42", auto_extend=True) as held:
        [info] = shop.page_raw().locks
        assert (info.key, info.fence) == ("invoice:42", held.fence)
        assert info.holder.startswith("tests.sqlite.test_django.")

    async def hold():
        async with alock("invoice:42"):
            return shop.is_locked("invoice:42")

    assert asyncio.run(hold()) is True
    assert shop.count_live_locks() == 0


def test_the_checks_report_nothing_and_open_nothing(shop, path):
    assert shop.key_prefix == "shop"
    assert messages() == messages(include_deployment_checks=True) == {}
    assert not path.exists()


def test_the_command_lists_counts_looks_up_and_reports_the_health(shop):
    with lock("invoice:42", holder="worker-7"):
        out, code = status()
        assert (shop.hash("invoice:42") in out, "worker-7" in out, code) == (True, True, 0)
        assert status("--count") == ("1\n", 0)
        assert status("--key", "invoice:42")[1] == 0
        assert status("--check")[0].startswith("default: healthy\n")
        [report] = json.loads(status("--check", "--format", "json")[0])
        assert (report["healthy"], report["liveLocks"]) == (True, 1)
    assert status("--key", "invoice:42")[1] == 1
    assert status() == ("No live locks.\n", 0)


@pytest.mark.django_db
def test_the_admin_lists_finds_and_releases_a_lock(shop):
    client = visits.visitor("view_lock", "release_lock")
    shop.acquire("invoice:42", 60_000, holder="worker-7")
    assert visits.rows(client) == [shop.hash("invoice:42")]
    assert "worker-7" in visits.page(client)
    holder = visits.holder_of(shop.lookup(key="invoice:42"))
    freed = visits.post(client, visits.RELEASE, **holder)
    assert "Released the lock" in visits.message_after(client, freed)
    assert not shop.is_locked("invoice:42")


@pytest.fixture
def app():
    app = Celery("shop", broker="memory://", fixups=[], set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def test_a_task_is_locked_by_the_alias_of_django(shop, app):
    @locked_task(app=app, key="invoice:{number}", using="default", on_contention="skip")
    def settle(number):
        assert shop.is_locked(f"invoice:{number}")
        return current_fence()

    first = settle.delay(42).get()
    with shop.acquire("invoice:42"):
        assert settle.delay(42).get() is None
    assert settle.delay(42).get() > first
    assert not shop.is_locked("invoice:42")


def test_a_task_is_locked_by_a_url_of_the_app(app, path):
    app.conf.syncguard_backend = f"sqlite:///{path}"

    @locked_task(app=app, key="invoice:{number}")
    def settle(number):
        with SQLiteBackend(path, key_prefix="syncguard") as backend:
            return [info.key for info in backend.live_locks_raw()], number

    assert settle.delay(42).get() == (["invoice:42"], 42)


def test_the_classes_are_those_of_sqlite(settings, path):
    configure(settings, LOCATION=path, FENCE_FLOOR="clock", OPTIONS={"synchronous": "full"})
    assert type(locks["default"]) is SQLiteBackend
    assert locks["default"]._file.synchronous == "full"

    async def kind():
        return type(alocks["default"])

    assert asyncio.run(kind()) is AsyncSQLiteBackend
    locks.reset()


def test_pages_do_not_wait_long_for_a_busy_file(settings, path):
    configure(settings, LOCATION=path, OPTIONS={"timeout_ms": 30_000})
    assert locks["default"]._timeout_ms == 30_000
    assert locks.inspector("default")._timeout_ms == 1_000
    configure(settings, LOCATION=path, OPTIONS={"timeout_ms": 200})
    assert locks.inspector("default")._timeout_ms == 200
    locks.reset()


def test_a_relative_location_is_a_warning(settings):
    for location in ("locks.sqlite3", "sqlite:///locks.sqlite3"):
        configure(settings, LOCATION=location)
        found = messages()
        assert list(found) == ["syncguard.W006"]
        assert "relative to the current directory" in found["syncguard.W006"]


def test_a_location_on_a_network_file_system_is_a_warning(settings, path, monkeypatch):
    mounts = path.with_name("mounts")
    mounts.write_text(f"server:/export {path.parent} nfs4 rw 0 0\n")
    monkeypatch.setattr("syncguard.sqlite.file_system.MOUNTS", mounts)
    configure(settings, LOCATION=path)
    assert "network file system (nfs4)" in messages()["syncguard.W006"]


@pytest.mark.parametrize("option", ["size", "timeout", "isolation_level"])
def test_an_option_that_the_backend_does_not_take_is_an_error(settings, path, option):
    configure(settings, LOCATION=path, OPTIONS={option: "hunter2"})
    [(id, text)] = messages().items()
    assert (id, option in text, "hunter2" in text) == ("syncguard.E003", True, False)


@pytest.mark.parametrize("option", ["locks_table", "fences_table"])
def test_a_table_of_the_typescript_library_is_an_error(settings, path, option):
    configure(settings, LOCATION=path, OPTIONS={option: "syncguard_locks"})
    [(id, text)] = messages().items()
    assert (id, option in text, "TypeScript" in text) == ("syncguard.E003", True, True)


@pytest.mark.parametrize("location", [None, 5, "", ":memory:", "redis://localhost", b"x"])
def test_another_location_is_an_error_that_shows_how_to_write_it(settings, location):
    configure(settings, LOCATION=location)
    with pytest.raises(ImproperlyConfigured, match=r'such as BASE_DIR / "locks\.sqlite3"'):
        locks["default"]


@pytest.mark.parametrize("kind", ["cache", "database"])
@pytest.mark.parametrize("backend", [SQLiteBackend, AsyncSQLiteBackend])
def test_a_cache_or_a_database_is_no_location(backend, kind):
    found = backend.read_location(GivenLocation(**{kind: {}}))
    assert isinstance(found, SettingProblem)
    assert found.setting == kind.upper()


def test_two_aliases_of_one_file_whose_prefixes_overlap_are_a_warning(settings, path):
    entry = {"BACKEND": BACKEND, "LOCATION": path, "KEY_PREFIX": "shop"}
    settings.SYNCGUARD = {"one": entry, "two": {**entry, "LOCATION": f"sqlite:///{path}"}}
    assert list(messages()) == ["syncguard.W001"]


def test_the_database_of_the_project_is_refused_and_stays_as_it_is(settings, path):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE django_migrations (id)")
    database.close()
    configure(settings, LOCATION=path)
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit):
        call_command("syncguard_status", stdout=out, stderr=err)
    assert "give the locks a file of their own" in err.getvalue()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    database.close()
    locks.reset()


def test_setup_has_nothing_to_do_for_a_file(settings, path):
    configure(settings, LOCATION=path)
    out = io.StringIO()
    call_command("syncguard_setup", stdout=out)
    assert out.getvalue() == "default: nothing to set up\n"
    locks.reset()


WITHOUT_REDIS = """if True:
    import sys
    sys.modules["redis"] = None
    import django
    from django.conf import settings
    settings.configure(
        SECRET_KEY="x" * 50,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "syncguard_django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        SYNCGUARD={"default": {"LOCATION": sys.argv[1], "KEY_PREFIX": "shop"}},
    )
    django.setup()
    from celery import Celery
    from django.core.management import call_command
    from syncguard_celery import current_fence, locked_task
    from syncguard_django import lock
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @locked_task(app=app, key="invoice:{number}", using="default")
    def settle(number):
        return len(current_fence())

    call_command("check")
    with lock("invoice:42"):
        call_command("syncguard_status", "--count")
    print(settle.delay(42).get())
"""


@pytest.mark.parametrize("url", ["sqlite:///{path}", "memory://shop"])
def test_django_and_celery_need_no_redis(path, url):
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_REDIS, url.format(path=path)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = "System check identified no issues (0 silenced).\n1\n15\n"
    assert (done.stdout, done.stderr) == (said, "")
