"""What signals and log lines about a lock contain, and what they never contain."""

from __future__ import annotations

import logging
import threading

import pytest
from wrapped_backends import release_as_administrator

from syncguard import LockLost
from syncguard_celery import (
    locked_task,
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
    task_lock_released,
)


def test_signals_have_task_key_hash_fence_and_times(app, syncguard_backend):
    received = []

    def receiver(signal=None, **facts):
        received.append((signal.name, facts))

    signals = (task_lock_acquired, task_lock_contended, task_lock_lost, task_lock_released)
    for signal in signals:
        signal.connect(receiver)

    @locked_task(app=app, name="received", key="received", on_contention="skip")
    def task():
        return None

    try:
        task.apply(task_id="the-id")
        with syncguard_backend.acquire("received", 20_000):
            task.apply(task_id="other-id")
    finally:
        for signal in signals:
            signal.disconnect(receiver)
    names = [name for name, _ in received]
    assert names == ["task_lock_acquired", "task_lock_released", "task_lock_contended"]
    acquired, released, contended = (facts for _, facts in received)
    for facts in (acquired, released):
        assert facts["sender"].name == facts["task_name"] == "received"
        assert facts["task_id"] == "the-id"
        assert facts["key_hash"] == syncguard_backend.hash("received")
        assert facts["fence"] == "000000000000001"
        assert facts["waited_ms"] >= 0
    assert released["held_ms"] >= 0
    assert (contended["task_id"], contended["policy"]) == ("other-id", "skip")
    assert contended["key_hash"] == syncguard_backend.hash("received")
    assert contended["fence"] == "000000000000002"


def test_a_lost_lock_sends_a_signal_and_is_logged(app, syncguard_backend, caplog):
    lost = threading.Event()
    received = []

    def receiver(signal=None, **facts):
        received.append((signal.name, facts["key_hash"], facts["fence"]))
        lost.set()

    task_lock_lost.connect(receiver)
    task_lock_released.connect(receiver)

    @locked_task(app=app, name="lost", key="lost", ttl_ms=3_000)
    def task():
        release_as_administrator(syncguard_backend, "lost")
        threading.Event().wait(20)

    try:
        with caplog.at_level(logging.ERROR, logger="syncguard.celery"), pytest.raises(LockLost):
            task()
        assert lost.wait(10)
    finally:
        task_lock_lost.disconnect(receiver)
        task_lock_released.disconnect(receiver)
    # A lost lock is not released, so there is no task_lock_released.
    assert received == [("task_lock_lost", syncguard_backend.hash("lost"), "000000000000001")]
    (line,) = [record.message for record in caplog.records if "lost its lock" in record.message]
    assert " held " in line
    assert "waited" not in line, "it is not known, so it is not logged"


def test_an_on_lost_callback_that_fails_is_logged_by_its_class(
    app, syncguard_backend, caplog, eventually
):
    """Not by its text, and without a traceback: the callback gets the lock id and the key."""
    called = threading.Event()

    def on_lost(held):
        called.set()
        raise ValueError(f"could not report hunter2 {held.lock_id}")

    @locked_task(app=app, name="lost", key="lost", ttl_ms=3_000, on_lost=on_lost)
    def task():
        release_as_administrator(syncguard_backend, "lost")
        assert called.wait(10)

    with pytest.raises(LockLost):
        task()
    text = "The on_lost callback failed with ValueError."
    eventually(lambda: any("callback failed" in line.message for line in caplog.records))
    assert ("syncguard.celery", logging.ERROR, text) in caplog.record_tuples
    assert "hunter2" not in caplog.text


def test_a_log_line_has_the_task_its_id_and_the_known_values(app, syncguard_backend, caplog):
    @locked_task(app=app, name="named", key="named", on_contention="skip")
    def task():
        return None

    with caplog.at_level(logging.DEBUG, logger="syncguard.celery"):
        task.apply(task_id="the-id")
        task()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("Task named[the-id] acquired its lock (key ")
    assert lines[2].startswith("Call of task named acquired its lock (key ")
    assert "None" not in "".join(lines)


def test_no_key_and_no_lock_id_is_logged(settle, caplog, syncguard_backend):
    with caplog.at_level(logging.DEBUG, logger="syncguard.celery"):
        settle("secret")
    assert caplog.records
    assert "secret" not in caplog.text
    assert syncguard_backend.hash("invoice:secret") in caplog.text
