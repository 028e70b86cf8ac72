"""The pytest fixtures that SyncGuard provides to its users."""

from __future__ import annotations

import subprocess
import sys

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


def test_the_suite_can_be_imported_by_its_module_first(tmp_path):
    (tmp_path / "test_users.py").write_text(
        "import syncguard.testing.conformance\n"
        "from syncguard.testing import LoopThread\n"
        "def test_it(): assert LoopThread is syncguard.testing.conformance.LoopThread\n"
    )
    strict = ["-W", "error::pytest.PytestAssertRewriteWarning"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:django", *strict]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert "1 passed" in done.stdout, done.stdout
