"""A lock that is lost while its task runs: in every pool, and when Redis cannot be reached."""

from __future__ import annotations

import pytest
from wrapped_backends import release_as_administrator

from syncguard import LockLost


def reachable(pool, how):
    """How the task waits. A thread is interrupted at its next bytecode, so it must not block."""
    return "loop" if "threads" in pool.queue else how


@pytest.mark.parametrize("how", ["sleep", "socket"])
def test_a_task_is_interrupted_where_it_blocks(any_pool, worker_app, scene, locks, how):
    how = reachable(any_pool, how)
    result = worker_app.losing.apply_async((scene.name, how), queue=any_pool.queue)
    scene.seen("enter")
    release_as_administrator(locks, f"lossy:{scene.name}")
    with pytest.raises(LockLost):
        result.get(timeout=25)
    scene.seen("lost")


def test_a_task_that_swallows_lock_lost_does_not_succeed(any_pool, worker_app, scene, locks):
    how = reachable(any_pool, "sleep")
    result = worker_app.swallowing.apply_async((scene.name, how), queue=any_pool.queue)
    scene.seen("enter")
    release_as_administrator(locks, f"lossy:{scene.name}")
    with pytest.raises(LockLost):
        result.get(timeout=25)


def test_signal_mode_only_sets_lost_and_the_task_does_not_succeed(
    any_pool, worker_app, scene, locks
):
    result = worker_app.noticing.apply_async((scene.name,), queue=any_pool.queue)
    scene.seen("enter")
    release_as_administrator(locks, f"lossy:{scene.name}")
    scene.seen("noticed")
    with pytest.raises(LockLost):
        result.get(timeout=25)


def test_a_callable_is_called_with_the_lock(any_pool, worker_app, scene, locks):
    result = worker_app.calling_back.apply_async((scene.name,), queue=any_pool.queue)
    scene.seen("enter")
    release_as_administrator(locks, f"lossy:{scene.name}")
    scene.seen("called back")
    with pytest.raises(LockLost):
        result.get(timeout=25)


def test_the_heartbeat_extends_the_lock_of_a_long_task(any_pool, worker_app, scene):
    result = worker_app.long_running.apply_async((scene.name, 4.0), queue=any_pool.queue)
    assert result.get(timeout=30) == "000000000000001"


def test_a_task_that_hangs_loses_its_lock_after_max_hold_ms(prefork, worker_app, scene):
    result = worker_app.hanging.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(LockLost):
        result.get(timeout=25)


def test_the_lock_is_lost_if_redis_does_not_answer(prefork, worker_app, scene, lock_server):
    result = worker_app.losing.apply_async((scene.name,), queue=prefork.queue)
    scene.seen("enter")
    with lock_server.paused():
        scene.seen("lost")
    with pytest.raises(LockLost):
        result.get(timeout=25)


def test_the_worker_runs_further_tasks_after_an_interrupt(prefork, worker_app, scene, locks):
    result = worker_app.losing.apply_async((scene.name,), queue=prefork.queue)
    pid = scene.seen("enter")["pid"]
    release_as_administrator(locks, f"lossy:{scene.name}")
    with pytest.raises(LockLost):
        result.get(timeout=25)
    names = [f"{scene.name}-{n}" for n in range(4)]  # as many as the pool has processes
    for name in names:
        worker_app.visiting.apply_async((name, True), queue=prefork.queue)
    pids = {scene.seen("enter", name=name)["pid"] for name in names}
    for name in names:
        worker_app.notes.set(f"go:{name}", "1")
    assert pid in pids
