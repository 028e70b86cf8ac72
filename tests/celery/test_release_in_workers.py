"""What happens to the lock at every kind of end of a task, with real signals and processes."""

from __future__ import annotations

import os
import signal

import celery
import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.exceptions import TaskRevokedError


@pytest.fixture
def is_free(locks, scene):
    return lambda: not locks.is_locked(f"visit:{scene.name}")


def test_the_lock_is_released_when_the_task_returns(any_pool, worker_app, scene, is_free):
    result = worker_app.ending.apply_async((scene.name, "return"), queue=any_pool.queue)
    assert result.get(timeout=30) == "returned"
    assert is_free()


def test_the_lock_is_released_when_the_task_raises(any_pool, worker_app, scene, is_free):
    result = worker_app.ending.apply_async((scene.name, "raise"), queue=any_pool.queue)
    with pytest.raises(ValueError, match=scene.name):
        result.get(timeout=30)
    assert is_free()


def test_the_lock_is_released_at_a_soft_time_limit(prefork, worker_app, scene, is_free):
    result = worker_app.ending.apply_async(
        (scene.name, "sleep"), soft_time_limit=5, queue=prefork.queue
    )
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=100)
    assert is_free()


def test_the_lock_is_released_at_a_hard_time_limit(
    killable, worker_app, scene, is_free, eventually
):
    result = worker_app.ending.apply_async(
        (scene.name, "sleep"), time_limit=1, queue=killable.queue
    )
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=30)
    eventually(is_free, 60)


def test_the_lock_is_released_at_revoke_with_terminate(
    killable, worker_app, scene, is_free, eventually
):
    result = worker_app.ending.apply_async((scene.name, "sleep"), queue=killable.queue)
    scene.seen("enter")
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    eventually(is_free, 60)


def test_the_lock_is_released_at_the_end_of_the_task_during_a_warm_shutdown(
    start_worker, worker_app, scene, is_free
):
    worker = start_worker("prefork", 1)
    worker_app.visiting.apply_async((scene.name, True), queue=worker.queue)
    scene.seen("enter")
    worker.signal(signal.SIGTERM)
    scene.go()
    worker.wait()
    assert is_free()
    assert scene.events() == ["enter", "leave"]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_the_lock_is_released_at_a_cold_shutdown(
    start_worker, worker_app, scene, is_free, eventually, pool
):
    if pool == "solo" and celery.VERSION < (5, 5):
        pytest.skip("before Celery 5.5 a solo worker ends its task before it ends")
    worker = start_worker(pool, 1)
    worker_app.ending.apply_async((scene.name, "sleep"), queue=worker.queue)
    scene.seen("enter")
    worker.signal(signal.SIGQUIT)
    eventually(is_free, 60)
    worker.wait()


def test_after_kill_9_the_lock_expires_and_the_redelivered_task_has_a_higher_fence(
    start_worker, worker_app, scene
):
    worker = start_worker("prefork", 1)
    result = worker_app.surviving.apply_async((scene.name,), queue=worker.queue)
    os.kill(scene.seen("enter")["pid"], signal.SIGKILL)
    assert result.get(timeout=60) == "000000000000002"
    first, *_, last = [line["fence"] for line in scene.notes()]
    assert (first, last) == ("000000000000001", "000000000000002")


def test_after_kill_9_of_the_whole_worker_another_worker_gets_a_higher_fence(
    start_worker, worker_app, scene, monkeypatch, eventually
):
    worker = start_worker("prefork", 1)
    result = worker_app.surviving.apply_async((scene.name,), queue=worker.queue)
    scene.seen("enter")
    worker.kill_all()
    # Redis delivers an unacknowledged message again after this time: now start another worker.
    monkeypatch.setenv("WORKER_APP_VISIBILITY", "1")
    eventually(lambda: worker_app.unacked_for(result.id) > 1.5)
    another = start_worker("prefork", 1, queue=worker.queue)
    try:
        assert result.get(timeout=60) == "000000000000002"
    finally:
        another.stop()  # else it would take the messages of the next tests, too


def test_a_message_that_is_delivered_twice_never_has_two_holders(
    prefork, worker_app, scene, deliver_twice
):
    result = deliver_twice(worker_app.redelivered, scene.name)
    scene.seen("contended")  # the task id and the retries are the same, but the lock id is not
    scene.go()
    scene.seen("leave", times=2)
    assert [e for e in scene.events() if e != "contended"] == ["enter", "leave"] * 2
    fences = [line["fence"] for line in scene.notes() if line["event"] == "enter"]
    assert fences == ["000000000000001", "000000000000002"]
    assert result.get(timeout=30) in fences
