"""``at="publish"``: one task per key from the call of ``delay()`` to the end of its run."""

from __future__ import annotations

import json
import logging
import os
import signal
import time

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from syncguard_celery import LockContended, task_lock_contended
from syncguard_celery.message_header import HEADER


@pytest.fixture
def lock_of(locks, scene):
    return lambda: locks.lookup(key=f"unique:{scene.name}")


@pytest.fixture
def left_ms(lock_of):
    """The remaining TTL of the lock, in milliseconds."""
    return lambda: lock_of().expires_at_ms - time.time() * 1000


def header_in(broker, queue):
    with broker.client() as client:
        return [json.loads(m)["headers"].get(HEADER) for m in client.lrange(queue, 0, -1)]


def test_a_duplicate_publishes_nothing_and_returns_the_first_result(
    worker_app, scene, broker, lock_of
):
    queue = f"unserved-{scene.name}"
    first = worker_app.unique.apply_async((scene.name,), queue=queue)
    second = worker_app.unique.apply_async((), {"name": scene.name}, queue=queue)
    assert second.id == first.id
    assert len(header_in(broker, queue)) == 1
    assert f"[{first.id}]@" in lock_of().holder


def test_a_duplicate_is_logged_with_the_id_of_the_queued_task(worker_app, scene, locks, caplog):
    queue = f"unserved-{scene.name}"
    first = worker_app.unique.apply_async((scene.name,), queue=queue)
    with caplog.at_level(logging.INFO, logger="syncguard.celery"):
        worker_app.unique.apply_async((scene.name,), queue=queue)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "Task worker_app.unique was not published:"
        f" task {first.id} with the same lock is queued or running"
        f" (key {locks.hash(f'unique:{scene.name}')}, fence {1:015d})"
    )


def test_a_duplicate_sends_a_signal(worker_app, scene, locks, lock_of):
    received = []

    def receiver(**facts):
        received.append(facts)

    queue = f"unserved-{scene.name}"
    task_lock_contended.connect(receiver)
    try:
        worker_app.unique.apply_async((scene.name,), queue=queue)
        worker_app.unique.apply_async((scene.name,), queue=queue)
    finally:
        task_lock_contended.disconnect(receiver)
    (facts,) = received
    assert facts["sender"].name == facts["task_name"] == "worker_app.unique"
    assert facts["policy"] == "publish"
    assert facts["key_hash"] == locks.hash(f"unique:{scene.name}")
    assert facts["fence"] == lock_of().fence


def test_without_a_key_every_task_is_published(prefork, worker_app, scene):
    task = worker_app.unique_without_lock
    first, second = (task.apply_async((scene.name,), queue=prefork.queue) for _ in range(2))
    assert first.id != second.id
    assert first.get(timeout=30)
    assert second.get(timeout=30)


def test_an_eager_task_acquires_its_lock_when_it_runs(worker_app, scene):
    worker_app.app.conf.task_always_eager = True
    try:
        assert worker_app.unique.delay(scene.name).get() == "000000000000001"
    finally:
        worker_app.app.conf.task_always_eager = False
    assert scene.events() == ["enter", "leave"]


def test_the_lock_of_a_task_with_a_countdown_is_held_for_longer(worker_app, scene, left_ms):
    # Its pending_ttl_ms is 3 s: that counts from when it may run.
    queue = f"unserved-{scene.name}"
    worker_app.unique_and_late.apply_async((scene.name,), queue=queue, countdown=60)
    assert 50_000 < left_ms() <= 63_000


def test_a_duplicate_of_a_running_task_returns_its_result(prefork, worker_app, scene, lock_of):
    first = worker_app.unique.apply_async((scene.name, True), queue=prefork.queue)
    scene.seen("enter")
    second = worker_app.unique.apply_async((scene.name,), queue=prefork.queue)
    assert second.id == first.id
    scene.go()
    assert second.get(timeout=30) == "000000000000001"
    assert lock_of() is None


def test_the_worker_adopts_the_lock_in_every_pool(any_pool, worker_app, scene, lock_of):
    result = worker_app.unique.apply_async((scene.name,), queue=any_pool.queue)
    assert result.get(timeout=30) == "000000000000001"
    assert lock_of() is None


def test_it_is_released_when_the_task_fails(prefork, worker_app, scene, lock_of):
    result = worker_app.unique.apply_async((scene.name, False, True), queue=prefork.queue)
    with pytest.raises(ValueError, match=scene.name):
        result.get(timeout=30)
    assert lock_of() is None


def test_it_is_released_when_the_task_is_revoked_before_it_runs(
    prefork, worker_app, scene, lock_of, eventually
):
    result = worker_app.unique.apply_async((scene.name,), queue=prefork.queue, countdown=8)
    assert lock_of() is not None
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=100)
    eventually(lambda: lock_of() is None)
    assert scene.events() == []


def test_it_is_released_when_the_message_expires(prefork, worker_app, scene, lock_of, eventually):
    result = worker_app.unique.apply_async(
        (scene.name,), queue=prefork.queue, countdown=1, expires=0.5
    )
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    eventually(lambda: lock_of() is None)


def test_it_is_released_when_publishing_fails(worker_app, scene, lock_of, monkeypatch):
    def refuse(*_args, **_options):
        raise OperationalError("no broker")

    monkeypatch.setattr(worker_app.app, "send_task", refuse)
    with pytest.raises(OperationalError):
        worker_app.unique.delay(scene.name)
    assert lock_of() is None


def test_a_message_whose_lock_expired_acquires_a_new_lock(
    start_worker, worker_app, scene, lock_of, eventually
):
    queue = f"later-{scene.name}"
    result = worker_app.unique_and_late.apply_async((scene.name,), queue=queue)
    eventually(lambda: lock_of() is None)  # its pending_ttl_ms is 3 s
    other = worker_app.unique_and_late.apply_async((scene.name,), queue=queue)
    assert other.id != result.id
    start_worker("solo", 1, queue=queue)
    assert {result.get(timeout=30), other.get(timeout=30)} <= {f"{n:015d}" for n in range(2, 6)}
    assert scene.events() == ["enter", "leave"] * 2


def test_the_contention_policy_applies_if_the_holder_is_not_a_task(
    prefork, worker_app, scene, locks
):
    with locks.acquire(f"unique:{scene.name}", 20_000, holder="somebody else"):
        result = worker_app.unique.apply_async((scene.name,), queue=prefork.queue)
        assert result.get(timeout=30) == "skipped"
        result = worker_app.unique_or_fail.apply_async((scene.name,), queue=prefork.queue)
        with pytest.raises(LockContended):
            result.get(timeout=30)


def test_another_task_with_the_same_key_is_not_a_duplicate(worker_app, scene):
    queue = f"unserved-{scene.name}"
    first = worker_app.unique.apply_async((scene.name,), queue=queue)
    second = worker_app.unique_or_fail.apply_async((scene.name,), queue=queue)
    assert second.id != first.id


def test_a_duplicate_with_a_given_id_applies_its_policy_in_the_worker(prefork, worker_app, scene):
    worker_app.unique.apply_async((scene.name, True), queue=prefork.queue)
    scene.seen("enter")
    second = worker_app.unique.apply_async(
        (scene.name,), queue=prefork.queue, task_id=f"own-{scene.name}"
    )
    assert second.id == f"own-{scene.name}"
    assert second.get(timeout=30) == "skipped"


def test_a_duplicate_does_not_hang_its_chain_group_or_chord(prefork, worker_app, scene):
    worker_app.unique.apply_async((scene.name, True), queue=prefork.queue)
    scene.seen("enter")
    duplicate = worker_app.unique.si(scene.name).set(queue=prefork.queue)
    echo = worker_app.gather.s("nothing").set(queue=prefork.queue)
    assert chain(duplicate, echo).delay().get(timeout=30) is None
    assert group(duplicate, duplicate).delay().get(timeout=30) == ["skipped", "skipped"]
    assert chord([duplicate, duplicate], echo).delay().get(timeout=30) is None


def test_a_message_that_is_delivered_twice_adopts_its_lock_once(
    prefork, worker_app, scene, deliver_twice, lock_of, eventually
):
    result = deliver_twice(worker_app.unique, scene.name, True)
    scene.seen("enter")
    eventually(lambda: f"[{result.id}] found its lock held by somebody else" in prefork.log)
    scene.go()
    scene.seen("leave")
    eventually(lambda: lock_of() is None)
    assert scene.events() == ["enter", "leave"]


def test_a_redelivered_message_acquires_a_new_lock(killable, worker_app, scene):
    result = worker_app.unique_surviving.apply_async((scene.name,), queue=killable.queue)
    scene.seen("enter")  # and kills its process
    assert result.get(timeout=60) == "000000000000002"


def test_a_retry_keeps_the_lock_during_its_countdown_with_a_new_id(
    prefork, worker_app, scene, lock_of
):
    result = worker_app.unique_retrying.apply_async((scene.name, 8), queue=prefork.queue)
    scene.seen("enter")
    first = lock_of()
    rival = worker_app.unique_or_fail.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockContended) as raised:
        rival.get(timeout=100)
    assert raised.value.fence == first.fence
    assert result.get(timeout=100) == 1
    entered = [line for line in scene.notes() if line["event"] == "enter"]
    assert [line["fence"] for line in entered] == [first.fence] * 2
    assert lock_of() is None


def test_the_lock_of_a_retry_is_held_during_its_countdown(
    prefork, worker_app, scene, left_ms, eventually
):
    # Its pending_ttl_ms is 20_000.
    result = worker_app.unique_retrying.apply_async((scene.name, 60), queue=prefork.queue)
    eventually(lambda: result.state == "RETRY")
    assert 70_000 < left_ms() <= 80_000
    result.revoke()


def test_the_lock_of_an_autoretry_is_held_during_its_countdown(
    prefork, worker_app, scene, left_ms, eventually
):
    result = worker_app.unique_autoretrying_later.apply_async((scene.name,), queue=prefork.queue)
    eventually(lambda: result.state == "RETRY")
    assert 70_000 < left_ms() <= 80_000
    result.revoke()


@pytest.mark.parametrize("task", ["unique_forgotten", "unique_autoretrying_unpublished"])
def test_the_lock_is_released_if_its_retry_was_not_published(
    prefork, worker_app, scene, lock_of, eventually, task
):
    getattr(worker_app, task).apply_async((scene.name,), queue=prefork.queue)
    scene.seen("enter")
    eventually(lambda: lock_of() is None)
    assert scene.events() == ["enter"]


def test_a_task_that_publishes_itself_again_by_hand_keeps_its_own_lock(prefork, worker_app, scene):
    worker_app.unique_repeating.apply_async((scene.name,), queue=prefork.queue)
    scene.seen("enter", times=2)
    fences = [line["fence"] for line in scene.notes()]
    assert fences == ["000000000000001", "000000000000002"]


def test_a_retry_does_not_begin_before_its_predecessor_has_ended(prefork, worker_app, scene):
    # throw=False: the task runs on for a while after it has requested its retry.
    worker_app.unique_retrying.apply_async((scene.name, 0, False), queue=prefork.queue)
    scene.seen("leave", times=2)
    assert scene.events() == ["enter", "leave"] * 2


def test_a_retry_with_other_arguments_has_another_lock(
    prefork, worker_app, scene, lock_of, eventually
):
    other = f"other-{scene.name}"
    result = worker_app.unique_moving.apply_async((scene.name, other), queue=prefork.queue)
    assert result.get(timeout=30)
    assert scene.notes(other)[0]["locked"]
    eventually(lambda: lock_of() is None)


def test_a_duplicate_of_a_task_in_its_countdown_returns_its_result(prefork, worker_app, scene):
    first = worker_app.unique_retrying.apply_async((scene.name, 8), queue=prefork.queue)
    scene.seen("enter")
    second = worker_app.unique_retrying.apply_async((scene.name,), queue=prefork.queue)
    assert second.id == first.id
    assert second.get(timeout=100) == 1


def test_revoking_a_retry_in_its_countdown_releases(
    prefork, worker_app, scene, lock_of, eventually
):
    result = worker_app.unique_retrying.apply_async((scene.name, 8), queue=prefork.queue)
    eventually(lambda: result.state == "RETRY")
    assert lock_of() is not None
    result.revoke()
    eventually(lambda: lock_of() is None)


def test_autoretry_keeps_the_lock_too(prefork, worker_app, scene, lock_of, eventually):
    result = worker_app.unique_autoretrying.apply_async((scene.name,), queue=prefork.queue)
    eventually(lambda: result.state == "RETRY")
    assert lock_of().fence == "000000000000001"
    assert result.get(timeout=100) == 1
    assert [line["fence"] for line in scene.notes()] == ["000000000000001"] * 2
    assert lock_of() is None


def test_autoretry_releases_the_lock_after_its_last_retry(prefork, worker_app, scene, lock_of):
    result = worker_app.unique_autoretrying.apply_async((scene.name, True), queue=prefork.queue)
    with pytest.raises(worker_app.Flaky):
        result.get(timeout=100)
    assert lock_of() is None


def test_the_lock_id_is_in_one_message_only(prefork, worker_app, scene, broker, eventually):
    queue = f"aside-{scene.name}"
    worker_app.unique_parent.apply_async((scene.name,), queue=queue)
    (header,) = header_in(broker, queue)
    lock_id = header["lock"]
    with broker.client() as client:
        message = json.loads(client.lpop(queue))
        message["properties"]["delivery_info"]["routing_key"] = prefork.queue
        client.lpush(prefork.queue, json.dumps(message))
        # The child is published to the default queue, which no worker serves here.
        scene.seen("enter")
        child = eventually(
            lambda: [m for m in client.lrange("prefork", 0, -1) if scene.name.encode() in m]
        )
        assert lock_id.encode() not in child[0]
        assert "fences" in json.loads(child[0])["headers"][HEADER]
    assert lock_id not in json.dumps(scene.notes())
    assert lock_id not in prefork.log
    assert "TaskPool: Apply" in prefork.log  # the line that prints a request


def test_a_task_published_during_publishing_does_not_carry_the_lock_id(worker_app, scene, broker):
    aside = f"aside-{scene.name}"

    def publish_another(**_):
        worker_app.child.apply_async(("nothing",), queue=aside)

    before_task_publish.connect(publish_another, sender="worker_app.unique")
    try:
        worker_app.unique.apply_async((scene.name,), queue=f"unserved-{scene.name}")
    finally:
        before_task_publish.disconnect(publish_another, sender="worker_app.unique")
    assert header_in(broker, aside) == [None]


def test_a_retry_that_keeps_the_lock_carries_a_new_id(start_worker, worker_app, scene, broker):
    worker = start_worker("solo", 1)
    aside = f"aside-{scene.name}"
    worker_app.unique_retrying.apply_async((scene.name, 30), queue=aside)
    (header,) = header_in(broker, aside)
    with broker.client() as client:
        message = json.loads(client.lpop(aside))
        message["properties"]["delivery_info"]["routing_key"] = worker.queue
        client.lpush(worker.queue, json.dumps(message))
        scene.seen("enter")
        worker_dead = worker.process
        deadline = time.monotonic() + 20
        found = []
        while not found and time.monotonic() < deadline:
            held = [json.loads(v)[0] for v in client.hgetall("unacked").values()]
            found = [
                m["headers"][HEADER]
                for m in held
                if scene.name in json.dumps(m["headers"]) and m["headers"]["retries"] == 1
            ]
        os.kill(worker_dead.pid, signal.SIGKILL)
    assert found[0]["lock"] != header["lock"]
    assert scene.notes()[0]["header"] == {}
