"""Fixtures of the tests of the Django adapter."""

from __future__ import annotations

import pytest
from databases import (  # noqa: F401 - fixtures
    database,
    locks_in_postgres,
    mariadb_database,
    postgres_database,
)
from temporary_databases import (  # noqa: F401 - fixtures
    mariadb_settings,
    postgres_settings,
    sqlite_settings,
)
from testsite import visits

from syncguard.redis import RedisBackend, client_options
from syncguard.testing import RedisServer
from syncguard_django import locks
from syncguard_django.signals import (
    lock_acquired,
    lock_contended,
    lock_extended,
    lock_lost,
    lock_released,
)


@pytest.fixture(autouse=True)
def patient_inspector(monkeypatch):
    """The inspectors wait a minute for Redis, not two seconds: this machine may be busy."""
    monkeypatch.setattr("syncguard.redis.location.QUICK_TIMEOUT_S", 60.0)


@pytest.fixture
def impatient_inspector(patient_inspector, monkeypatch):  # noqa: ARG001 - undoes it
    """The inspectors wait as long as they do in production. Use it before ``backend``."""
    quick_s = client_options.QUICK_TIMEOUT_S
    monkeypatch.setattr("syncguard.redis.location.QUICK_TIMEOUT_S", quick_s)


@pytest.fixture
def configure(settings, syncguard_redis):
    """Set the settings of the alias ``default``, on an empty Redis. Fences begin at 1."""

    def set_default(**entry):
        entry = {
            "LOCATION": syncguard_redis.url,
            "KEY_PREFIX": "testsite",
            "FENCE_FLOOR": None,
            **entry,
        }
        settings.SYNCGUARD = {"default": entry}

    return set_default


@pytest.fixture
def site_redis(configure, syncguard_redis):
    """The Redis of the test site, empty."""
    configure()
    return syncguard_redis


@pytest.fixture
def backend(configure):
    """The backend of the alias ``default``, on an empty Redis."""
    configure()
    return locks["default"]


@pytest.fixture(scope="session")
def crowded_redis():
    """A Redis with 10,000 live locks and 200,000 idle fence counters. Do not change it."""
    with RedisServer() as server, server.client() as client:
        backend = RedisBackend(client, key_prefix="testsite")
        for number in range(10_000):
            backend.acquire(f"invoice:{number}", ttl_ms=3_600_000 + number, holder=f"w-{number}")
        backend.close()
        for start in range(0, 200_000, 20_000):
            counters = range(start, start + 20_000)
            client.mset({f"testsite:fence:testsite:old:{number}": "1" for number in counters})
        yield server


@pytest.fixture
def many_locks(settings, crowded_redis):
    """The test site on the crowded Redis."""
    settings.SYNCGUARD = {"default": {"LOCATION": crowded_redis.url, "KEY_PREFIX": "testsite"}}
    return crowded_redis


@pytest.fixture
def viewer():
    """Signed in to the admin; may see the locks."""
    return visits.visitor("view_lock")


@pytest.fixture
def releaser():
    """Signed in to the admin; may see and release them."""
    return visits.visitor("view_lock", "release_lock")


@pytest.fixture
def two_aliases(settings, syncguard_redis):
    """Two aliases, ``one`` and ``two``, on one Redis."""
    settings.SYNCGUARD = {
        name: {"LOCATION": syncguard_redis.url, "KEY_PREFIX": name} for name in ("one", "two")
    }


@pytest.fixture
def received():
    """The lock signals that were sent, as (name, event) pairs."""
    signals = {
        "acquired": lock_acquired,
        "contended": lock_contended,
        "extended": lock_extended,
        "lost": lock_lost,
        "released": lock_released,
    }
    seen = []
    receivers = []
    for name, signal in signals.items():

        def receive(event, name=name, **_kwargs):
            seen.append((name, event))

        receivers.append(receive)
        signal.connect(receive, weak=False)
    yield seen
    for signal, receive in zip(signals.values(), receivers, strict=True):
        signal.disconnect(receive)
