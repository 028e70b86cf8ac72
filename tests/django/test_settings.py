"""The SYNCGUARD setting: read once, frozen, with precise errors."""

from __future__ import annotations

import dataclasses

import pytest
from django.core.exceptions import ImproperlyConfigured

from syncguard import Acquisition
from syncguard.redis import RedisBackend
from syncguard_django import locks
from syncguard_django.settings import configuration, read


def read_default(caches=None, **entry):
    return read({"default": entry}, caches or {}).of("default")


def refusal_of(caches=None, **entry):
    with pytest.raises(ImproperlyConfigured) as raised:
        read_default(caches, **entry)
    return str(raised.value)


def test_an_address_is_enough():
    alias = read_default(LOCATION="redis://10.0.0.7:6380/2")
    assert alias.backend_class is RedisBackend
    assert (alias.key_prefix, alias.ttl_ms) == ("syncguard", 30_000)
    assert alias.acquisition == Acquisition()
    assert dict(alias.options) == {"db": 2}
    assert not alias.telemetry
    assert alias.fence_floor == "clock"


def test_the_fence_floor_can_be_switched_off_and_is_off_for_a_backend_without_one():
    assert read_default(LOCATION="redis://", FENCE_FLOOR=None).fence_floor is None
    bare = read_default(LOCATION="dict://x", BACKEND="dict_backend.DictBackend")
    assert bare.fence_floor is None


def test_everything_can_be_set():
    alias = read_default(
        BACKEND="syncguard.redis.RedisBackend",
        LOCATION="redis://ann:pw@host/1",
        KEY_PREFIX="shop",
        TTL_MS=5_000,
        ACQUISITION={"timeout_ms": 100, "max_retries": 0},
        OPTIONS={"socket_timeout": 3},
        HASH_SECRET="pepper",
        FENCE_FLOOR="clock",
        TELEMETRY=True,
        HOLD_UNTIL="block",
        SHOW_KEYS=True,
    )
    assert alias.acquisition == Acquisition(timeout_ms=100, max_retries=0)
    assert alias.options == {"db": 1, "username": "ann", "password": "pw", "socket_timeout": 3}
    assert (alias.hash_secret, alias.fence_floor, alias.telemetry) == ("pepper", "clock", True)
    assert alias.hold_until == "block"
    assert alias.show_keys


def test_options_override_the_address():
    alias = read_default(LOCATION="redis://:old@host/1", OPTIONS={"db": 4, "password": "new"})
    assert (alias.options["db"], alias.options["password"]) == (4, "new")


def test_an_alias_cannot_be_changed():
    alias = read_default(LOCATION="redis://")
    with pytest.raises(dataclasses.FrozenInstanceError):
        alias.ttl_ms = 1


def test_an_alias_prints_without_its_secrets():
    alias = read_default(
        LOCATION="redis://:hunter2@host/0?x=hunter2",
        HASH_SECRET="hunter2",
        OPTIONS={"a": "hunter2"},
    )
    assert "hunter2" not in repr(alias)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("BACKEND", 7, "must be a dotted path to a class"),
        ("KEY_PREFIX", "", "must be a non-empty str"),
        ("TTL_MS", "30000", "must be a whole number of milliseconds above 0"),
        ("TTL_MS", True, "must be a whole number of milliseconds above 0"),
        ("TTL_MS", 0, "must be a whole number of milliseconds above 0"),
        ("ACQUISITION", 5, "must be a dictionary"),
        ("ACQUISITION", {"timeout": 5}, "may contain only max_retries, retry_delay_ms, backoff"),
        ("ACQUISITION", {"timeout_ms": -1}, "timeout_ms must be a whole number"),
        ("OPTIONS", ["ssl"], "must be a dictionary of client options"),
        ("OPTIONS", {1: 2}, "must be a dictionary of client options"),
        ("HASH_SECRET", "", "must be a non-empty str or bytes, or None"),
        ("FENCE_FLOOR", "time", "must be 'clock' or None"),
        ("TELEMETRY", "yes", "must be True or False"),
        ("HOLD_UNTIL", "commit", "must be 'transaction' or 'block'"),
        ("HOLD_UNTIL", None, "must be 'transaction' or 'block'"),
        ("SHOW_KEYS", 1, "must be True or False"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_was_expected(name, value, expected):
    text = refusal_of(LOCATION="redis://", **{name: value})
    assert text.startswith(f'SYNCGUARD["default"]["{name}"] ')
    assert expected in text


@pytest.mark.parametrize("location", ["redis://host:hunter2/0", 7, None, "localhost:6379"])
def test_a_malformed_location_is_refused_without_being_shown(location):
    text = refusal_of(LOCATION=location)
    assert text.startswith('SYNCGUARD["default"]["LOCATION"] must be a URL such as redis://')
    assert "hunter2" not in text


def test_a_location_with_an_unknown_scheme_is_refused_without_being_shown():
    text = refusal_of(LOCATION="hunter2://host/0")
    assert text.startswith('SYNCGUARD["default"]["LOCATION"] cannot be used: no installed package')
    assert "schemes are redis, rediss, unix" in text
    assert "hunter2" not in text


def test_a_backend_can_be_named_by_its_scheme_and_by_its_asyncio_class():
    for name in ("redis", "syncguard.redis.AsyncRedisBackend"):
        assert read_default(LOCATION="redis://", BACKEND=name).backend_class is RedisBackend


def test_a_class_that_is_no_backend_is_refused():
    text = refusal_of(LOCATION="redis://", BACKEND="collections.OrderedDict")
    assert text.startswith('SYNCGUARD["default"]["BACKEND"] cannot be used: OrderedDict is not')


def test_an_unknown_setting_is_refused_with_a_suggestion():
    text = refusal_of(LOCATION="redis://", TTL=5)
    assert 'SYNCGUARD["default"]["TTL"] is not a setting' in text
    assert "Did you mean TTL_MS?" in text


def test_a_setting_similar_to_no_other_is_refused_with_the_list():
    assert "The settings are BACKEND, LOCATION," in refusal_of(LOCATION="redis://", WEIGHT="7")


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"LOCATION": "redis://", "CACHE": "default"},
        {"LOCATION": "redis://", "DATABASE": "default"},
        {"CACHE": "default", "DATABASE": "default"},
    ],
)
def test_exactly_one_of_location_cache_and_database_is_needed(entry):
    text = refusal_of(**entry)
    assert 'LOCATION"] or CACHE or DATABASE must be given, and only one of them' in text


def test_a_database_that_the_project_does_not_have_is_refused():
    assert 'DATABASE"] must be the name of a DATABASES entry' in refusal_of(DATABASE="other")


def test_a_database_needs_a_backend_that_uses_one():
    setting, databases = {"default": {"DATABASE": "default"}}, {"default": {"NAME": "shop"}}
    with pytest.raises(ImproperlyConfigured, match='DATABASE"\\] needs a BACKEND that uses a'):
        read(setting, {}, databases=databases).of("default")


@pytest.mark.parametrize("setting", [None, {}, [], "redis://"])
def test_the_setting_must_be_a_dictionary_of_aliases(setting):
    with pytest.raises(ImproperlyConfigured, match="SYNCGUARD must be a dictionary of aliases"):
        read(setting, {}).of("default")


@pytest.mark.parametrize("setting", [{"default": "redis://"}, {7: {}}])
def test_an_alias_must_be_a_dictionary_under_a_name(setting):
    [problem] = next(iter(read(setting, {}).problems.values()))
    assert "must be a dictionary of settings, under a name that is a str" in str(problem)


def test_an_invalid_alias_does_not_affect_the_others():
    both = read({"default": {"LOCATION": "redis://"}, "broken": {"LOCATION": "?"}}, {})
    assert both.of("default").alias == "default"
    assert both.names == ("default", "broken")
    with pytest.raises(ImproperlyConfigured):
        both.of("broken")


def test_an_unknown_alias_is_refused_with_the_known_ones():
    with pytest.raises(ImproperlyConfigured, match="no alias 'other'; it has default"):
        read({"default": {"LOCATION": "redis://"}}, {}).of("other")


def test_the_setting_is_read_once():
    assert configuration() is configuration()


def test_an_overridden_setting_is_read_again(settings, syncguard_redis):
    before = configuration()
    settings.SYNCGUARD = {"default": {"LOCATION": syncguard_redis.url, "KEY_PREFIX": "changed"}}
    assert configuration() is not before
    assert locks["default"].key_prefix == "changed"


def test_other_changed_settings_do_not_reload_it(settings):
    before = configuration()
    settings.LANGUAGE_CODE = "de"
    assert configuration() is before


DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"


def test_the_redis_of_a_django_cache_can_be_used():
    cache = {
        "BACKEND": DJANGO,
        "LOCATION": ["redis://:pw@primary:6380/1", "redis://replica/1"],
        "OPTIONS": {"serializer": "json", "pool_class": "x", "socket_timeout": 2},
    }
    alias = read_default({"main": cache}, CACHE="main")
    assert alias.location.store == ("primary", 6380, 1)
    assert alias.options == {"db": 1, "password": "pw", "socket_timeout": 2}


def test_the_first_of_several_addresses_is_the_one_for_writes():
    cache = {"BACKEND": DJANGO, "LOCATION": "redis://one;redis://two"}
    assert read_default({"main": cache}, CACHE="main").location.url == "redis://one:6379"


def test_the_redis_of_a_django_redis_cache_can_be_used():
    cache = {
        "BACKEND": DJANGO_REDIS,
        "LOCATION": "redis://primary/2",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.DefaultClient",
            "PASSWORD": "pw",
            "SOCKET_TIMEOUT": 4,
            "CONNECTION_POOL_KWARGS": {"max_connections": 20},
        },
    }
    alias = read_default({"main": cache}, CACHE="main")
    assert alias.options == {"db": 2, "password": "pw", "socket_timeout": 4, "max_connections": 20}


def test_locks_can_use_a_separate_database_on_the_redis_of_a_cache():
    cache = {"BACKEND": DJANGO, "LOCATION": "redis://primary/1"}
    assert read_default({"main": cache}, CACHE="main", OPTIONS={"db": 2}).options["db"] == 2


def test_a_subclass_of_a_supported_cache_is_supported(tmp_path, monkeypatch):
    (tmp_path / "own_caches.py").write_text(
        "from django.core.cache.backends.redis import RedisCache\nclass Own(RedisCache): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cache = {"BACKEND": "own_caches.Own", "LOCATION": "redis://primary/1"}
    assert read_default({"main": cache}, CACHE="main").location.store == ("primary", 6379, 1)


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        ({"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "its BACKEND is neither"),
        ({"BACKEND": "nowhere.Cache", "LOCATION": "redis://"}, "its BACKEND cannot be imported"),
        ({"BACKEND": DJANGO, "LOCATION": "host:hunter2"}, "its LOCATION is not a Redis URL"),
        ({"BACKEND": DJANGO}, "its LOCATION is not a Redis URL"),
        ({"BACKEND": DJANGO, "LOCATION": "redis://", "OPTIONS": 5}, "its OPTIONS is not"),
        ({"BACKEND": DJANGO_REDIS, "OPTIONS": {"SENTINELS": []}}, "it uses Sentinel"),
        ("redis://", "it is not a dictionary"),
    ],
)
def test_a_cache_that_does_not_use_redis_is_refused(cache, why):
    text = refusal_of({"main": cache}, CACHE="main")
    assert text.startswith('SYNCGUARD["default"]["CACHE"] names a CACHES entry that cannot be used')
    assert why in text
    assert "hunter2" not in text


def test_a_cache_that_does_not_exist_is_refused():
    assert "must be the name of a CACHES entry" in refusal_of(CACHE="nope")


def test_locks_and_cache_use_the_same_redis(settings, syncguard_redis):
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": syncguard_redis.url}}
    settings.SYNCGUARD = {"default": {"CACHE": "default"}}
    with locks["default"].acquire("invoice:42", ttl_ms=10_000):
        with syncguard_redis.client() as client:
            assert client.exists("syncguard:invoice:42")
