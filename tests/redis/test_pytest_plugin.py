"""The pytest fixtures that SyncGuard provides to its users."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_finds_an_empty_redis(syncguard_redis, turn):
    with syncguard_redis.client() as client:
        assert client.dbsize() == 0
        client.set(f"left behind {turn}", 1)


@pytest.mark.parametrize("break_server", ["kill", "pause", "resume"])
def test_each_test_finds_a_running_redis_even_after_a_kill_or_a_pause(
    syncguard_redis, break_server
):
    with syncguard_redis.client(socket_timeout=10) as client:
        assert client.ping() is True
    getattr(syncguard_redis, break_server)()


def test_all_tests_share_one_server(syncguard_redis, syncguard_redis_server):
    assert syncguard_redis is syncguard_redis_server


def test_the_backend_locks_on_that_redis(syncguard_redis, syncguard_backend):
    result = syncguard_backend.acquire("invoice:42", ttl_ms=30_000)
    assert result.ok
    assert syncguard_backend.is_locked("invoice:42")
    with syncguard_redis.client() as client:
        assert client.exists("syncguard:invoice:42") == 1
    assert syncguard_backend.release(result.lock_id).ok
