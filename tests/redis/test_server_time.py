"""All times come from the server: a client with a wrong clock gets correct results."""

from __future__ import annotations

import time

import pytest


def server_ms(client):
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


@pytest.fixture(params=[-86_400, 86_400], ids=["a day behind", "a day ahead"])
def wrong_clock(request, monkeypatch):
    """The client's wall clock is off by a day."""
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + request.param)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + request.param * 10**9)


@pytest.mark.usefixtures("wrong_clock")
@pytest.mark.parametrize("operation", ["acquire", "extend", "adopt"])
def test_the_expiry_comes_from_the_servers_clock(client, backend, operation):
    if operation != "acquire":
        lock_id = backend.acquire("k", 600_000).lock_id
    before = server_ms(client)
    if operation == "acquire":
        result = backend.acquire("k", 60_000)
    else:
        result = getattr(backend, operation)(lock_id, 60_000)
    after = server_ms(client)
    assert before + 60_000 <= result.expires_at_ms <= after + 60_000


@pytest.mark.usefixtures("wrong_clock")
def test_a_lock_is_live_by_the_servers_clock(backend):
    lock = backend.acquire("k", 60_000)
    assert backend.is_locked("k")
    assert backend.lookup(key="k") is not None
    assert backend.lookup(lock_id=lock.lock_id) is not None
    assert len(backend.live_locks()) == 1
    assert not backend.acquire("k", 60_000).ok
    assert backend.extend(lock.lock_id, 60_000).ok
    assert backend.release(lock.lock_id).ok


def test_the_time_of_acquisition_is_the_servers(client, backend):
    before = server_ms(client)
    backend.acquire("k", 60_000)
    after = server_ms(client)
    assert before <= backend.lookup(key="k").acquired_at_ms <= after


def test_the_capabilities_name_the_server_as_time_authority(backend):
    assert backend.capabilities.backend == "redis"
    assert backend.capabilities.time_authority == "server"
    assert backend.capabilities.supports_fencing is True
