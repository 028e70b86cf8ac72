"""An outage of the lock's Redis under real workers: tasks are published again, and none fails."""

from __future__ import annotations

import importlib
import os
import time

import kombu
import pytest

from syncguard import LockError
from syncguard.testing import RedisServer

TASKS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "12"))
OUTAGE_S = 10.0 if TASKS >= 100 else 6.0
"""Longer than the client's time-out."""


@pytest.fixture
def outage_tasks(worker_app):
    return importlib.import_module("outage_tasks")


def publish(task, worker, scene, **options):
    return [task.apply_async((scene.name, n), queue=worker.queue, **options) for n in range(TASKS)]


def assert_each_ran_once(results, scene):
    assert [result.get(timeout=100) for result in results] == list(range(TASKS))
    notes = scene.notes()
    assert sorted(line["number"] for line in notes) == list(range(TASKS)), notes


def test_no_task_fails_when_redis_does_not_answer_for_a_while(
    prefork, outage_tasks, scene, lock_server, eventually
):
    with lock_server.paused():
        began = time.monotonic()
        results = publish(outage_tasks.settling, prefork, scene)
        eventually(lambda: any(result.state == "RETRY" for result in results))
        time.sleep(max(0.0, began + OUTAGE_S - time.monotonic()))
        assert not scene.notes()
    assert_each_ran_once(results, scene)


def test_no_task_fails_when_redis_is_killed_and_restarted(
    prefork, outage_tasks, scene, lock_server, eventually
):
    lock_server.kill()
    try:
        results = publish(outage_tasks.settling_or_skipping, prefork, scene)
        eventually(lambda: all(result.state == "RETRY" for result in results))
    finally:
        lock_server.restart()
    assert_each_ran_once(results, scene)


def test_no_task_is_lost_when_one_redis_for_messages_and_locks_does_not_answer(
    start_worker, outage_tasks, scene, monkeypatch
):
    with RedisServer() as shared:
        monkeypatch.setenv("WORKER_APP_BROKER", shared.url)
        monkeypatch.setenv("WORKER_APP_LOCKS", f"{shared.url}?socket_timeout=5")
        worker = start_worker("prefork", 2)
        with kombu.Connection(shared.url) as connection:
            results = publish(
                outage_tasks.settling_or_skipping, worker, scene, connection=connection
            )
        with shared.paused():
            time.sleep(OUTAGE_S)  # the length of the outage
        assert [result.get(timeout=100) for result in results] == list(range(TASKS))
        worker.stop()
    # At least once: tasks that were running when Redis stopped may have been published twice.
    assert {line["number"] for line in scene.notes()} == set(range(TASKS))


def test_a_task_with_on_unavailable_fail_fails_at_once(prefork, outage_tasks, scene, lock_server):
    lock_server.kill()
    try:
        result = outage_tasks.giving_up.apply_async((scene.name,), queue=prefork.queue)
        with pytest.raises(LockError) as raised:
            result.get(timeout=30)
    finally:
        lock_server.restart()
    assert raised.value.code == "ServiceUnavailable"


def test_the_error_is_raised_in_the_publisher(outage_tasks, scene, lock_server):
    lock_server.kill()
    try:
        with pytest.raises(LockError) as raised:
            outage_tasks.queued_once.delay(scene.name)
    finally:
        lock_server.restart()
    assert raised.value.code == "ServiceUnavailable"
