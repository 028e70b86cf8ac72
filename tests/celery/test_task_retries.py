"""A retried task: no contention with its previous run, and min_hold_ms only for the last run."""

from __future__ import annotations


def test_a_retry_does_not_meet_contention_with_its_previous_run(prefork, worker_app, scene):
    # It is published while the predecessor still holds the lock, lingers, and fails at contention.
    result = worker_app.retrying.apply_async((scene.name, 0.5), queue=prefork.queue)
    assert result.get(timeout=60) == 2
    assert scene.events() == ["enter", "leave"] * 3


def test_a_retry_inherits_the_fence_and_gets_a_higher_one(prefork, worker_app, scene):
    worker_app.retrying.apply_async((scene.name,), queue=prefork.queue).get(timeout=60)
    entered = [line for line in scene.notes() if line["event"] == "enter"]
    assert [line["inherited"] for line in entered] == [None, *[f"{n:015d}" for n in (1, 2)]]
    assert [line["fence"] for line in entered] == [f"{n:015d}" for n in (1, 2, 3)]


def test_min_hold_ms_applies_to_the_last_run_only(prefork, worker_app, scene, locks):
    worker_app.retrying.apply_async((scene.name,), queue=prefork.queue).get(timeout=60)
    assert locks.lookup(key=f"visit:{scene.name}").fence == "000000000000003"


def test_autoretry_releases_the_lock_before_its_minimum(prefork, worker_app, scene, locks):
    result = worker_app.autoretrying.apply_async((scene.name,), queue=prefork.queue)
    assert result.get(timeout=60) == 2
    entered = [line for line in scene.notes() if line["event"] == "enter"]
    assert [line["inherited"] for line in entered] == [None, *[f"{n:015d}" for n in (1, 2)]]
    assert locks.lookup(key=f"visit:{scene.name}").fence == "000000000000003"
