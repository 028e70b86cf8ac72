"""A message that real brokers deliver again to real workers: no work is lost or done twice."""

from __future__ import annotations

import importlib
import os
import signal

import celery
import kombu
import pytest
from wrapped_backends import release_as_administrator

from syncguard import LockLost
from syncguard.testing import RedisServer

KILLS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "4"))


@pytest.fixture
def redelivered_tasks(worker_app):
    return importlib.import_module("redelivered_tasks")


@pytest.fixture
def two_workers(start_worker, scene, monkeypatch, eventually):
    """A task that runs on one worker, and a second worker that got its message too.

    They have their own broker: the second worker takes every message that is not acknowledged
    within a second, which would include the messages of other tests.
    """
    started = []

    def run(task):
        monkeypatch.setenv("WORKER_APP_BROKER", broker.url)
        first = start_worker("prefork", 1)
        started.append(first)
        with kombu.Connection(broker.url) as connection:
            result = task.apply_async((scene.name,), queue=first.queue, connection=connection)
        scene.seen("begin")
        monkeypatch.setenv("WORKER_APP_VISIBILITY", "1")
        eventually(lambda: scene.worker_app.unacked_for(result.id, broker.url) > 1.5)
        second = start_worker("prefork", 1, queue=first.queue)
        started.append(second)
        return first, second, result

    with RedisServer() as broker:
        yield run
        for worker in started:
            worker.stop()


def test_a_task_with_policy_skip_runs_again_after_kill_9(killable, redelivered_tasks, scene):
    names = [f"{scene.name}-{n}" for n in range(KILLS)]
    for name in names:
        scene.worker_app.notes.set(f"go:{name}", "1")
    task = redelivered_tasks.killed_late
    results = [task.apply_async((name, True), queue=killable.queue) for name in names]
    assert all(result.get(timeout=100).startswith("done") for result in results)
    for name in names:
        events = [line["event"] for line in scene.notes(name)]
        assert events == ["begin", "begin", "end"]


def test_only_one_body_runs_and_its_result_is_kept_while_the_first_delivery_is_alive(
    two_workers, redelivered_tasks, scene, eventually
):
    _, second, result = two_workers(redelivered_tasks.skipping_late)
    eventually(lambda: second.log.count(f"[{result.id}] ignored") >= 2)
    assert result.state == "PENDING"
    scene.go()
    assert result.get(timeout=30) == "done with 000000000000001"
    eventually(lambda: f"[{result.id}] was delivered again but has already ended" in second.log)
    assert scene.events() == ["begin", "end"]
    assert result.get() == "done with 000000000000001"


def test_the_copy_runs_after_the_first_delivery_is_killed(
    two_workers, redelivered_tasks, scene, eventually
):
    first, second, result = two_workers(redelivered_tasks.killed_late)
    eventually(lambda: second.log.count(f"[{result.id}] ignored") >= 2)
    first.kill_all()
    scene.go()
    assert result.get(timeout=60) == "done with 000000000000002"
    assert scene.events() == ["begin", "begin", "end"]


def test_the_copy_runs_after_the_worker_of_the_first_delivery_is_shut_down(
    two_workers, redelivered_tasks, scene, eventually
):
    """It releases its lock but has not ended."""
    first, second, result = two_workers(redelivered_tasks.skipping_late)
    eventually(lambda: f"[{result.id}] ignored" in second.log)
    first.signal(signal.SIGQUIT)
    first.wait()
    scene.go()
    assert result.get(timeout=60) == "done with 000000000000002"


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="retry_on_worker_lost is of Celery 5.7")
def test_the_copy_that_celery_makes_for_a_lost_worker_does_not_skip(
    killable, redelivered_tasks, scene
):
    scene.go()
    task = redelivered_tasks.retried_by_the_worker
    result = task.apply_async((scene.name, True), queue=killable.queue)
    assert result.get(timeout=60) == "done with 000000000000002"


def test_two_publications_with_one_id_are_contention(prefork, redelivered_tasks, scene):
    task, task_id = redelivered_tasks.skipping_late, scene.name
    task.apply_async((scene.name,), task_id=task_id, queue=prefork.queue)
    scene.seen("begin")
    second = task.apply_async((scene.name,), task_id=task_id, queue=prefork.queue)
    assert second.get(timeout=30) == "skipped"


def test_a_task_that_lost_its_lock_is_interrupted_and_delivered_again(
    prefork, redelivered_tasks, scene, locks
):
    result = redelivered_tasks.retried_when_lost.apply_async((scene.name,), queue=prefork.queue)
    scene.seen("begin")
    release_as_administrator(locks, f"delivery:{scene.name}")
    assert result.get(timeout=60) == 1
    assert [line["retries"] for line in scene.notes()] == [0, 1]


def test_a_task_that_always_hangs_fails_after_its_retries(prefork, redelivered_tasks, scene):
    result = redelivered_tasks.hanging_always.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockLost):
        result.get(timeout=100)
    assert scene.events() == ["begin", "begin"]
