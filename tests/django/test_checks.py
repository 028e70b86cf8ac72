"""System checks: they need no network, and each message has its id."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from django.core.checks import run_checks

DOCUMENTED = Path(__file__).parents[2] / "docs" / "reference" / "django-checks.md"
SECURE = {
    "LOCATION": "rediss://:pw@redis.example/0",
    "KEY_PREFIX": "shop",
    "HASH_SECRET": "pepper",
}


@pytest.fixture
def found(settings, monkeypatch):
    """Set the setting and run the checks, where any connection would fail the test."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a check used the network")

    def run(aliases, *, deploy=False, caches=None):
        settings.SYNCGUARD = aliases
        settings.CACHES = caches or {}
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "connect", refuse)
            messages = run_checks(tags=["syncguard"], include_deployment_checks=deploy)
        return {message.id: message for message in messages}

    return run


def test_a_valid_setting_has_no_messages(found):
    assert found({"default": SECURE}, deploy=True) == {}


def test_no_setting_is_an_error(found):
    assert list(found(None)) == ["syncguard.E001"]


def test_an_unknown_setting_is_an_error_with_a_suggestion(found):
    messages = found({"default": {"LOCATION": "redis://", "PREFIX": "x"}})
    assert messages["syncguard.E002"].hint == "Did you mean KEY_PREFIX?"


def test_a_wrong_value_is_an_error(found):
    messages = found({"default": {"LOCATION": "redis://", "TTL_MS": "5"}})
    assert 'SYNCGUARD["default"]["TTL_MS"] must be' in messages["syncguard.E003"].msg


def test_a_client_option_that_does_not_exist_is_an_error(found):
    messages = found({"default": {"LOCATION": "redis://", "OPTIONS": {"socket_tymeout": 5}}})
    assert 'SYNCGUARD["default"]' in messages["syncguard.E003"].msg


def test_a_cache_that_does_not_use_redis_is_an_error(found):
    assert list(found({"default": {"CACHE": "nope"}})) == ["syncguard.E004"]


def test_a_missing_package_is_an_error(found):
    messages = found({"default": {"LOCATION": "redis://", "BACKEND": "not_installed.Backend"}})
    assert "is its package installed?" in messages["syncguard.E005"].msg


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"socket_timeout": "5"}, "socket_timeout must be a number of seconds, not str"),
        ({"socket_timeout": True}, "socket_timeout must be a number of seconds, not bool"),
        ({"max_connections": 5.0}, "max_connections must be a whole number, not float"),
        ({"socket_keepalive": "yes"}, "socket_keepalive must be True or False, not str"),
        ({"socket_timout": 5}, "socket_timout is unknown to redis-py"),
    ],
    ids=str,
)
def test_a_wrong_client_option_is_an_error_that_names_it(found, option, expected):
    messages = found({"default": {"LOCATION": "redis://", "OPTIONS": option}})
    assert list(messages) == ["syncguard.E003"]
    assert expected in messages["syncguard.E003"].msg


def test_right_client_options_are_fine(found):
    right = {"socket_timeout": 5, "socket_connect_timeout": 0.5, "max_connections": 5}
    right |= {"socket_keepalive": True, "client_name": "shop", "health_check_interval": 30}
    assert found({"default": {"LOCATION": "redis://", "OPTIONS": right}}) == {}


def test_a_ttl_below_one_second_is_a_warning(found):
    for ttl_ms, expected in ((30, ["syncguard.W005"]), (1_000, [])):
        assert list(found({"default": {"LOCATION": "redis://", "TTL_MS": ttl_ms}})) == expected


def test_an_option_in_the_query_and_in_options_is_a_warning(found):
    address = "redis://localhost/0?socket_timeout=1&client_name=hunter2"
    messages = found({"default": {"LOCATION": address, "OPTIONS": {"socket_timeout": 5}}})
    assert list(messages) == ["syncguard.W004"]
    assert "socket_timeout" in messages["syncguard.W004"].msg
    assert "client_name" not in messages["syncguard.W004"].msg


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("shop", "shop", True),
        ("shop", "shop:eu", True),
        ("shop:", "shop", True),
        ("shop", ":", True),
        ("shop", "shopping", False),
        ("shop", "bank", False),
    ],
)
def test_overlapping_prefixes_on_one_redis_are_a_warning(found, one, other, overlap):
    aliases = {
        "one": {"LOCATION": "redis://localhost:6379/0", "KEY_PREFIX": one},
        "other": {"LOCATION": "redis://127.0.0.1", "KEY_PREFIX": other},
    }
    assert ("syncguard.W001" in found(aliases)) is overlap


@pytest.mark.parametrize("outer", ["shop", "shop:"])
def test_the_warning_of_nested_prefixes_names_two_keys_that_are_one_lock(found, outer):
    message = found(
        {
            "all": {"LOCATION": "redis://", "KEY_PREFIX": outer},
            "eu": {"LOCATION": "redis://", "KEY_PREFIX": "shop:eu"},
        }
    )["syncguard.W001"]
    assert '"eu:order" of SYNCGUARD["all"] and the key "order" of SYNCGUARD["eu"]' in message.msg
    assert "two fence counters" in message.msg
    assert 'begins with another one and ":"' in message.hint


def test_the_warning_of_equal_prefixes_says_that_all_locks_are_shared(found):
    entry = {"LOCATION": "redis://", "KEY_PREFIX": "shop"}
    message = found({"one": entry, "two": entry})["syncguard.W001"]
    assert "every lock of one is also a lock of the other" in message.msg


@pytest.mark.parametrize("elsewhere", ["redis://localhost/1", "redis://other", "unix:///r.sock"])
def test_overlapping_prefixes_on_two_databases_are_fine(found, elsewhere):
    assert found({"one": {"LOCATION": "redis://"}, "two": {"LOCATION": elsewhere}}) == {}


CACHE = {
    "BACKEND": "django.core.cache.backends.redis.RedisCache",
    "LOCATION": "redis://localhost/0",
}


def test_sharing_a_database_with_a_cache_is_a_warning(found):
    messages = found({"default": {"CACHE": "main"}}, caches={"main": CACHE})
    text = messages["syncguard.W002"].msg
    assert text.endswith("cache.clear() is FLUSHDB. It deletes live locks.")


def test_without_the_floor_the_warning_names_the_fences_too(found):
    entry = {"CACHE": "main", "FENCE_FLOOR": None}
    messages = found({"default": entry}, caches={"main": CACHE})
    assert messages["syncguard.W002"].msg.endswith("live locks, and fences restart at 1.")


def test_a_location_with_the_database_of_a_cache_is_a_warning(found):
    messages = found({"default": {"LOCATION": "redis://127.0.0.1:6379"}}, caches={"main": CACHE})
    assert list(messages) == ["syncguard.W002"]


def test_a_separate_database_silences_the_warning(found):
    entry = {"CACHE": "main", "OPTIONS": {"db": 1}}
    assert found({"default": entry}, caches={"main": CACHE}) == {}


def test_a_cache_without_redis_causes_no_warning(found):
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    assert found({"default": {"LOCATION": "redis://"}}, caches={"default": local}) == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"LOCATION": "redis://:pw@redis.example/0"}, ["syncguard.W010"]),
        ({"LOCATION": "rediss://redis.example/0"}, ["syncguard.W011"]),
        ({"KEY_PREFIX": "syncguard"}, ["syncguard.W012"]),
        ({"HASH_SECRET": None}, ["syncguard.W013"]),
        ({"SHOW_KEYS": True}, ["syncguard.W014"]),
        ({"LOCATION": "redis://:pw@127.0.0.1/0"}, []),
        ({"LOCATION": "rediss://redis.example/0", "OPTIONS": {"password": "pw"}}, []),
    ],
)
def test_deployment_checks_report_unsafe_settings(found, change, expected):
    assert list(found({"default": {**SECURE, **change}}, deploy=True)) == expected


def test_a_hash_secret_derived_from_the_secret_key_is_enough(found):
    derived = {name: value for name, value in SECURE.items() if name != "HASH_SECRET"}
    assert found({"default": derived}, deploy=True) == {}


def test_show_keys_is_only_reported_for_deployment(found):
    aliases = {"default": {**SECURE, "SHOW_KEYS": True}}
    assert found(aliases) == {}
    message = found(aliases, deploy=True)["syncguard.W014"]
    assert message.msg.startswith('SYNCGUARD["default"] has SHOW_KEYS')
    assert "syncguard_django.view_lock_key" in message.msg


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ({}, {}, False),
        ({}, {"HASH_SECRET": None}, True),
        ({"HASH_SECRET": "a"}, {"HASH_SECRET": "b"}, True),
        ({"HASH_SECRET": "a"}, {"HASH_SECRET": b"a"}, False),
        ({"HASH_SECRET": "a"}, {"HASH_SECRET": "b", "KEY_PREFIX": "bank"}, False),
        ({"HASH_SECRET": "a"}, {"HASH_SECRET": "b", "LOCATION": "redis://localhost/1"}, False),
    ],
)
def test_two_aliases_of_the_same_locks_with_different_hashes_are_a_warning(
    found, one, other, differ
):
    same = {"LOCATION": "redis://localhost/0", "KEY_PREFIX": "shop"}
    messages = found({"one": {**same, **one}, "two": {**same, **other}})
    assert ("syncguard.W003" in messages) is differ


def test_unsafe_settings_are_only_reported_for_deployment(found):
    assert found({"default": {"LOCATION": "redis://redis.example"}}) == {}


def test_no_check_shows_a_password(found):
    aliases = {
        "a": {"LOCATION": "redis://:hunter2@redis.example/0", "KEY_PREFIX": "x", "WRONG": 1},
        "b": {"LOCATION": "redis://:hunter2@redis.example/0"},
        "c": {"LOCATION": "redis://host:hunter2/0"},
        "d": {"LOCATION": "redis://:hunter2@redis.example/0", "OPTIONS": {"db": "hunter2"}},
    }
    messages = found(aliases, deploy=True)
    assert len(messages) > 3
    assert "hunter2" not in "".join(map(str, messages.values()))


def test_every_id_is_documented_and_every_documented_id_exists():
    package = Path(__file__).parents[2] / "syncguard_django"
    if not package.is_dir():
        pytest.skip("needs a checkout")
    pattern = r"syncguard\.[EW]\d{3}"
    sources = "".join(source.read_text() for source in package.rglob("*.py"))
    assert set(re.findall(pattern, DOCUMENTED.read_text())) == set(re.findall(pattern, sources))
