"""Displayed hashes: keyed from ``SECRET_KEY`` by default, and still found after it changed."""

from __future__ import annotations

import pytest
from celery import Celery
from django.test import override_settings
from testsite.hashes import shown_hash

from syncguard import hash_key, keyed_hash
from syncguard_celery import LockContended, current_lock, locked_task
from syncguard_django import alocks, locks
from syncguard_django.key_hash_secrets import derive
from syncguard_django.settings import configuration


def distance(one, other):
    return sum(a != b for a, b in zip(one, other, strict=True))


def test_the_hashes_of_similar_keys_look_different(backend):
    assert distance(hash_key("demo:1"), hash_key("demo:2")) < 6, "those of the specification do"
    assert distance(backend.hash("demo:1"), backend.hash("demo:2")) > 12


def test_by_default_the_hash_is_keyed_with_the_secret_key(backend):
    before = backend.hash("invoice:42")
    assert before == shown_hash("invoice:42") != hash_key("invoice:42")
    with override_settings(SECRET_KEY="another"):
        assert locks["default"].hash("invoice:42") != before
        assert locks["default"].hash("invoice:42") == keyed_hash(derive("another"), "invoice:42")


def test_the_secret_key_itself_is_not_the_hash_secret(settings):
    assert settings.SECRET_KEY.encode() not in derive(settings.SECRET_KEY)
    assert keyed_hash(settings.SECRET_KEY.encode(), "k") != shown_hash("k")


def test_none_gives_the_hashes_of_the_specification(configure):
    configure(HASH_SECRET=None)
    assert locks["default"].hash("invoice:42") == hash_key("invoice:42")


def test_a_configured_hash_secret_is_used_unchanged(configure):
    configure(HASH_SECRET="pepper")
    assert locks["default"].hash("k") == keyed_hash(b"pepper", "k")
    assert configuration().of("default").former_hash_secrets == ()


def test_a_project_without_a_secret_key_shows_the_hashes_of_the_specification(configure, settings):
    configure()
    settings.SECRET_KEY = ""
    assert locks["default"].hash("k") == hash_key("k")


def test_neither_current_nor_former_derived_secrets_are_printed(configure, settings):
    settings.SECRET_KEY_FALLBACKS = ["old"]
    configure()
    alias = configuration().of("default")
    assert alias.former_hash_secrets == (derive("old"),)
    assert repr(derive("old")) not in repr(alias)
    assert repr(derive(settings.SECRET_KEY)) not in repr(alias)


@pytest.mark.asyncio
async def test_asyncio_shows_the_same_hash(configure):
    configure()
    assert alocks["default"].hash("k") == locks["default"].hash("k") == shown_hash("k")


@pytest.mark.usefixtures("backend")
def test_a_celery_task_on_an_alias_shows_the_hash_of_the_alias():
    app = Celery("shop", broker="memory://")

    @locked_task(
        app=app, name="settle", key="invoice:{number}", using="default", on_contention="fail"
    )
    def settle(number):  # noqa: ARG001 - it makes the key
        [info] = locks["default"].live_locks()
        return info.key_hash, current_lock().fence

    assert settle(42) == (shown_hash("invoice:42"), "000000000000001")
    with locks["default"].acquire("invoice:42"), pytest.raises(LockContended) as raised:
        settle(42)
    assert raised.value.key_hash == shown_hash("invoice:42")
