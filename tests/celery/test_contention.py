"""Another holder has the lock: what happens to the task, in real workers."""

from __future__ import annotations

import re
import time

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import chain, chord, group

from syncguard_celery import LockContended


@pytest.fixture
def occupied(prefork, worker_app, scene):
    """A task that holds the lock until the test releases it by ``scene.go()``."""
    result = worker_app.visiting.apply_async((scene.name, True), queue=prefork.queue)
    scene.seen("enter")
    return result


def test_only_one_task_runs_at_a_time_and_all_tasks_run(any_pool, worker_app, scene):
    results = [
        worker_app.visiting.apply_async((scene.name, False, 0.05), queue=any_pool.queue)
        for _ in range(4)
    ]
    fences = [result.get(timeout=60) for result in results]
    assert sorted(fences) == [f"{n:015d}" for n in range(1, 5)]
    assert scene.events() == ["enter", "leave"] * 4


def test_a_task_that_meets_contention_has_the_retry_state_and_is_logged_at_info(
    prefork, worker_app, scene, occupied, eventually
):
    second = worker_app.visiting.apply_async((scene.name,), queue=prefork.queue)
    eventually(lambda: second.state == "RETRY")
    scene.go()
    assert second.get(timeout=30) == "000000000000002"
    lines = [line for line in prefork.log.splitlines() if second.id in line]
    assert any("found its lock held by somebody else: retry" in line for line in lines)
    assert not any("ERROR" in line or "WARNING" in line for line in lines)


def test_contention_does_not_use_up_the_tasks_own_retries(
    prefork, worker_app, scene, occupied, eventually
):
    second = worker_app.never_retrying.apply_async((scene.name,), queue=prefork.queue)
    eventually(lambda: prefork.log.count(f"[{second.id}] found its lock held") >= 2)
    scene.go()
    assert second.get(timeout=30) == 0


def test_the_time_that_a_task_waited_counts_from_its_first_attempt(
    prefork, worker_app, scene, occupied, eventually
):
    second = worker_app.visiting.apply_async((scene.name,), queue=prefork.queue)

    def attempts():
        return prefork.log.count(f"[{second.id}] found its lock held")

    eventually(lambda: attempts() >= 1)
    first_seen = time.monotonic()
    eventually(lambda: attempts() >= 3)
    at_least_ms = (time.monotonic() - first_seen) * 1000
    scene.go()
    second.get(timeout=30)
    line = rf"\[{second.id}\] acquired its lock \(.*, waited (\d+) ms"
    waited_ms = int(eventually(lambda: re.search(line, prefork.log))[1])
    assert waited_ms >= at_least_ms


def test_retrying_ends_with_the_contention_timeout(prefork, worker_app, scene, occupied):
    second = worker_app.visiting_impatiently.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockContended) as raised:
        second.get(timeout=30)
    assert raised.value.fence == "000000000000001"


def test_a_skipped_task_returns_its_skip_result(prefork, worker_app, scene, occupied):
    second = worker_app.skipping.apply_async((scene.name,), queue=prefork.queue)
    assert second.get(timeout=30) == "skipped"
    assert scene.events() == ["enter"]


def test_a_skipped_task_leaves_the_holders_lock_alone(prefork, worker_app, scene, occupied, locks):
    worker_app.skipping.apply_async((scene.name,), queue=prefork.queue).get(timeout=30)
    assert locks.lookup(key=f"visit:{scene.name}").fence == "000000000000001"


def test_a_skipped_step_does_not_hang_its_chain_group_or_chord(
    prefork, worker_app, scene, occupied
):
    skipping = worker_app.skipping.si(scene.name).set(queue=prefork.queue)
    echo = worker_app.gather.s("nothing").set(queue=prefork.queue)
    assert chain(skipping, echo).delay().get(timeout=30) is None
    assert group(skipping, skipping).delay().get(timeout=30) == ["skipped", "skipped"]
    assert chord([skipping, skipping], echo).delay().get(timeout=30) is None


def test_a_waiting_task_is_woken_when_the_lock_is_released(prefork, worker_app, scene, occupied):
    second = worker_app.waiting.apply_async((scene.name,), queue=prefork.queue)
    scene.go()
    assert second.get(timeout=30) == "000000000000002"


def test_waiting_ends_with_the_contention_timeout(prefork, worker_app, scene, occupied):
    second = worker_app.waiting_briefly.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockContended):
        second.get(timeout=30)


def test_the_error_of_a_failed_task_has_the_fence_and_the_remaining_time(
    prefork, worker_app, scene, occupied, locks
):
    second = worker_app.failing.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockContended) as raised:
        second.get(timeout=30)
    assert raised.value.key_hash == locks.hash(f"visit:{scene.name}")
    assert raised.value.fence == "000000000000001"
    assert 0 <= raised.value.remaining_ms <= 3_000
    assert scene.name not in str(raised.value)


@pytest.mark.parametrize(("policy", "outcome"), [("skip", "chosen"), ("fail", LockContended)])
def test_a_callable_chooses_the_policy_for_each_call(
    prefork, worker_app, scene, occupied, policy, outcome
):
    second = worker_app.choosing.apply_async((scene.name, policy), queue=prefork.queue)
    if outcome is LockContended:
        with pytest.raises(LockContended):
            second.get(timeout=30)
    else:
        assert second.get(timeout=30) == outcome


def test_a_lock_under_an_existing_task_works_the_same(prefork, worker_app, scene, occupied):
    second = worker_app.under_app_task.apply_async((scene.name,), queue=prefork.queue)
    assert second.get(timeout=30) == "skipped"


def test_a_shared_task_is_locked_too(prefork, worker_app, scene, occupied):
    second = worker_app.app.tasks["worker_app.shared"].apply_async(
        (scene.name,), queue=prefork.queue
    )
    scene.go()
    assert second.get(timeout=30) == "000000000000002"


def test_a_task_without_a_key_acquires_no_lock(prefork, worker_app, scene):
    assert worker_app.without_lock.apply_async((scene.name,), queue=prefork.queue).get(timeout=30)


def test_the_holder_label_names_task_id_and_host(prefork, worker_app, scene, occupied, locks):
    from celery.utils.nodenames import gethostname

    label = locks.lookup(key=f"visit:{scene.name}").holder
    assert label == f"worker_app.visiting[{occupied.id}]@{gethostname()}"


def test_the_lock_is_held_for_at_least_min_hold_ms(prefork, worker_app, scene, locks):
    task = worker_app.holding_at_least
    assert task.apply_async((scene.name,), queue=prefork.queue).get(timeout=30)
    info = locks.lookup(key=f"visit:{scene.name}")
    assert info.fence == "000000000000001"
    with pytest.raises(LockContended):
        task.apply_async((scene.name,), queue=prefork.queue).get(timeout=30)


def test_min_hold_ms_also_applies_to_a_task_that_failed(prefork, worker_app, scene, locks):
    result = worker_app.holding_at_least.apply_async((scene.name, True), queue=prefork.queue)
    with pytest.raises(ValueError, match=scene.name):
        result.get(timeout=30)
    assert locks.is_locked(f"visit:{scene.name}")


def test_a_time_limit_ends_the_waiting(prefork, worker_app, scene, occupied):
    second = worker_app.waiting.apply_async((scene.name,), queue=prefork.queue, soft_time_limit=0.5)
    with pytest.raises(SoftTimeLimitExceeded):
        second.get(timeout=30)


def test_a_chord_waits_for_a_header_task_that_meets_contention(
    prefork, worker_app, scene, occupied
):
    visiting = worker_app.visiting.si(scene.name).set(queue=prefork.queue)
    body = worker_app.gather.s(f"visit:{scene.name}").set(queue=prefork.queue)
    result = chord([visiting, visiting], body).delay()
    scene.go()
    assert result.get(timeout=60) is not None
    assert scene.events() == ["enter", "leave"] * 3
