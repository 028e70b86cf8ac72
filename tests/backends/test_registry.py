"""The registry: from a URL or a dotted path to a backend, and its errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bare_backend import BareBackend
from dict_backend import DictBackend
from dict_backend_async import AsyncDictBackend

from syncguard import InvalidArgument, LockError
from syncguard.backends import (
    async_backend_class,
    async_from_url,
    backend_class,
    from_url,
)
from syncguard.redis import AsyncRedisBackend, RedisBackend


@pytest.fixture
def dict_scheme(install):
    install(dict="dict_backend:DictBackend")


def python(script):
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("url", ["redis://localhost", "rediss://localhost", "unix:///r.sock"])
def test_the_schemes_of_redis_are_built_in(url):
    with from_url(url, key_prefix="shop", socket_timeout=3) as backend:
        assert type(backend) is RedisBackend
        assert backend.key_prefix == "shop"


def test_a_url_gives_an_asyncio_backend_too():
    assert type(async_from_url("redis://localhost")) is AsyncRedisBackend


def test_a_backend_from_a_url_acquires_a_lock(syncguard_redis):
    with from_url(syncguard_redis.url) as backend, backend.lock("k") as held:
        assert backend.lookup(key="k").fence == held.fence


@pytest.mark.usefixtures("dict_scheme")
def test_a_package_adds_a_scheme_by_an_entry_point():
    assert type(from_url("dict://shop")) is DictBackend
    assert type(async_from_url("dict://shop")) is AsyncDictBackend


def test_a_class_is_named_by_its_dotted_path_or_by_that_of_its_twin():
    for path in ("dict_backend.DictBackend", "dict_backend_async.AsyncDictBackend"):
        assert backend_class(path) is DictBackend
        assert async_backend_class(path) is AsyncDictBackend


def test_a_built_in_scheme_cannot_be_replaced(install):
    install(redis="dict_backend:DictBackend")
    assert backend_class("redis") is RedisBackend


def test_two_packages_with_one_scheme_are_refused(install):
    install(dict="dict_backend:DictBackend")
    install(dict="bare_backend:BareBackend")
    with pytest.raises(
        InvalidArgument, match=r"several .* dict://: bare_backend:BareBackend, dict"
    ):
        from_url("dict://shop")


def test_two_packages_may_name_the_same_class(install):
    install(dict="dict_backend:DictBackend")
    install(dict="dict_backend:DictBackend")
    assert backend_class("dict") is DictBackend


def test_entry_points_are_read_only_for_schemes_that_are_not_built_in():
    script = """
from importlib import metadata
def refuse(**_): raise SystemExit("read")
metadata.entry_points = refuse
from syncguard.backends import from_url
from_url("redis://localhost").close()
print("not read")
from_url("dict://shop")
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.stdout.strip(), found.stderr.strip()) == ("not read", "read")


def test_importing_the_registry_imports_no_driver():
    script = "import sys, syncguard.backend, syncguard.backends; print('redis' in sys.modules)"
    assert python(script) == "False"


def test_a_missing_package_says_what_to_install():
    script = """
import sys
sys.modules["redis"] = None
from syncguard.backends import from_url
try:
    from_url("redis://:hunter2@localhost")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = "InvalidArgument redis:// needs the package redis: pip install redis"
    assert python(script) == said


@pytest.mark.parametrize("name", ["RedisBackend", "AsyncRedisBackend"])
def test_a_dotted_path_to_a_missing_package_says_what_to_install(name):
    script = f"""if True:
        import sys
        sys.modules["redis"] = None
        from syncguard import LockError, backends
        try:
            backends.backend_class("syncguard.redis.{name}")
        except LockError as error:
            print(error.code, error)
    """
    needs = "needs the package redis: pip install redis"
    assert python(script) == f"InvalidArgument syncguard.redis.{name} {needs}"


@pytest.mark.parametrize("url", ["localhost:6379", "", 7, None, "hunter 2://host", "://host"])
def test_an_invalid_url_is_refused_without_being_quoted(url):
    with pytest.raises(InvalidArgument, match="looks like redis://") as refused:
        from_url(url)
    assert "hunter" not in str(refused.value)


def test_an_unknown_scheme_is_refused_without_being_quoted():
    with pytest.raises(InvalidArgument, match="schemes are redis, rediss, unix") as refused:
        from_url("hunter2://host")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["nowhere.Backend", "dict_backend.Nothing", "7", "", None])
def test_a_path_that_cannot_be_imported_is_refused(name):
    with pytest.raises(InvalidArgument):
        backend_class(name)


def test_an_entry_point_that_cannot_be_imported_is_refused(install):
    install(dict="nowhere:DictBackend")
    with pytest.raises(InvalidArgument, match="nowhere:DictBackend cannot be imported"):
        from_url("dict://shop")


@pytest.mark.parametrize("path", ["collections.OrderedDict", "time.time"])
def test_a_class_that_is_not_a_backend_is_refused(path):
    with pytest.raises(InvalidArgument, match="is not the class of a backend"):
        backend_class(path)


class WithoutAsyncClass(RedisBackend):
    """Only its base class has an asyncio class, which would behave as the base class does."""


class OfTheSameKind(BareBackend):
    twin = "dict_backend.DictBackend"


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (WithoutAsyncClass, "WithoutAsyncClass names no asyncio twin"),
        (BareBackend, "BareBackend names no asyncio twin"),
        (OfTheSameKind, "is not a class for asyncio code"),
    ],
)
def test_a_class_without_its_own_asyncio_class_is_refused_in_asyncio(monkeypatch, cls, said):
    monkeypatch.setattr(sys.modules["bare_backend"], "Named", cls, raising=False)
    assert backend_class("bare_backend.Named") is cls
    with pytest.raises(InvalidArgument, match=said):
        async_backend_class("bare_backend.Named")


def test_an_option_that_the_class_does_not_take_is_named(install):
    install(bare="bare_backend:BareBackend")
    with pytest.raises(LockError, match="from_url does not take fence_floor, size") as refused:
        from_url("bare://x", size="hunter2", fence_floor="clock")
    assert "hunter2" not in str(refused.value)
