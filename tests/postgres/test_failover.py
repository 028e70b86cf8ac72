"""Servers that become read-only, and a standby that is promoted: with real replication."""

from __future__ import annotations

import itertools

import pytest
from postgres_standby import PostgresStandby, demote
from wait_until import wait_until

from syncguard import ServiceUnavailable
from syncguard.postgres import PostgresBackend
from syncguard.testing import PostgresServer

LONG_MS = 600_000


@pytest.fixture
def primary(syncguard_postgres):  # noqa: ARG001 - skips where no PostgreSQL can be had
    with PostgresServer() as server:
        with PostgresBackend.from_url(server.url) as backend:
            backend.setup()
        yield server


@pytest.fixture
def standby(primary):
    with PostgresStandby(primary) as server:
        yield server


def url_of(*servers):
    places = ",".join(f"{server.host}:{server.port}" for server in servers)
    return f"postgresql://{PostgresServer.user}@{places}/{PostgresServer.database}"


@pytest.mark.slow
def test_a_demoted_primary_is_left_for_the_promoted_standby(primary, standby, backend_at):
    backend = backend_at(url_of(primary, standby))
    kept, released = backend.acquire("kept", LONG_MS), backend.acquire("released", LONG_MS)
    released.release()
    standby.wait_until_complete()
    standby.promote()
    demote(primary)
    # The old primary is first in the list, and still accepts connections.
    assert not backend.acquire("kept", LONG_MS).ok
    assert backend.acquire("released", LONG_MS).fence > released.fence
    assert kept.release().ok
    with standby.connect() as sql:
        assert sql.execute("SELECT count(*) FROM syncguard_py_locks").fetchone() == (2,)


@pytest.mark.slow
def test_a_standby_is_unavailable_for_locks_and_says_so(primary, standby, backend_at):
    backend = backend_at(standby.url)
    with PostgresBackend.from_url(primary.url) as writer:
        held = writer.acquire("k", LONG_MS)
        standby.wait_until_complete()
        assert backend.is_locked("k"), "a standby can be read"
        for operation in (
            lambda: backend.acquire("other", LONG_MS),
            lambda: backend.extend(held.lock_id, LONG_MS),
            lambda: backend.release(held.lock_id),
        ):
            with pytest.raises(ServiceUnavailable, match="25006"):
                operation()
    with PostgresBackend.from_url(standby.url) as reader:
        assert "this server is a standby: it cannot store locks" in reader.health().findings


@pytest.mark.slow
def test_after_a_failover_that_lost_commits_fences_grow_only_with_a_floor(
    primary, standby, backend_at
):
    url = url_of(primary, standby)
    with_floor, without = backend_at(url, fence_floor="clock"), backend_at(url, key_prefix="plain")
    for backend in (with_floor, without):
        backend.acquire("k", LONG_MS).release()
    standby.wait_until_complete()
    standby.stop_following()
    lost = [backend.acquire("k", LONG_MS).fence for backend in (with_floor, without)]
    primary.kill()
    standby.promote()
    assert with_floor.acquire("k", LONG_MS).fence > lost[0]
    assert without.acquire("k", LONG_MS).fence == lost[1], "a documented limit"


def test_a_list_of_servers_without_a_primary_is_unavailable(primary, backend_at):
    demote(primary)
    backend = backend_at(url_of(primary, primary))
    with pytest.raises(ServiceUnavailable):
        backend.acquire("k", LONG_MS)


def test_a_server_that_became_read_only_is_used_again_when_it_can_write(
    backend, syncguard_postgres
):
    """The connection that was read-only is closed: the next one asks the server again."""

    def set_read_only(value):
        with syncguard_postgres.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.execute("SELECT pg_reload_conf()")

    def state_of_acquire():
        try:
            return backend.acquire(f"k{next(numbers)}", LONG_MS).ok
        except ServiceUnavailable as error:
            return getattr(error.context.cause, "sqlstate", None)

    numbers = itertools.count()
    assert state_of_acquire() is True
    set_read_only("on")
    try:
        wait_until(lambda: state_of_acquire() == "25006", within_s=60)
    finally:
        set_read_only("off")
    wait_until(lambda: state_of_acquire() is True, within_s=60)
