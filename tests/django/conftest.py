"""What the tests of the Django adapter have at hand."""

from __future__ import annotations

import pytest

from syncguard_django import locks
from syncguard_django.signals import (
    lock_acquired,
    lock_contended,
    lock_extended,
    lock_lost,
    lock_released,
)


@pytest.fixture
def configure(settings, syncguard_redis):
    """Set the settings of the alias ``default``, on an empty Redis."""

    def set_default(**entry):
        entry = {"LOCATION": syncguard_redis.url, "KEY_PREFIX": "testsite", **entry}
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
