"""Many tasks contend for one key: one waits in its slot, the others are published again in turn."""

from __future__ import annotations

import logging
import threading
from collections import Counter

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from wrapped_backends import WithoutQueue

from syncguard import Turn
from syncguard_celery import contention, current_fence, hot_key_turns, locked_task


@pytest.fixture
def long_slot_wait(monkeypatch):
    """A task waits in its slot for longer than a busy machine delays the test."""
    for module in (contention, hot_key_turns):
        monkeypatch.setattr(module, "SLOT_WAIT_MS", 60_000)


@pytest.fixture
def hot(app, syncguard_backend):
    @locked_task(app=app, name="hot", key="hot")
    def hot():
        return current_fence()

    return hot


@pytest.fixture
def waiter(syncguard_redis):
    """The ticket of the waiting task; None if no task waits."""
    with syncguard_redis.client() as client:
        yield lambda: client.hget("syncguard:id::queue:syncguard:hot", "waiter")


@pytest.fixture
def in_a_slot():
    """Runs a function in a thread, as in a slot of a worker; returns a function for its result."""
    threads = []

    def start(function):
        answers = []
        thread = threading.Thread(target=lambda: answers.append(function()))
        thread.start()
        threads.append(thread)

        def answer():
            thread.join(60)
            return answers[0]

        return answer

    yield start
    for thread in threads:
        thread.join(60)


def test_one_task_waits_in_its_slot_and_is_woken_by_the_release(
    hot, deliver, syncguard_backend, long_slot_wait, waiter, in_a_slot, eventually
):
    holder = syncguard_backend.acquire("hot", 600_000)
    hot.delay()
    waiting = in_a_slot(deliver)
    eventually(waiter)
    holder.release()
    delivered = waiting()
    assert (delivered.state, delivered.result) == ("SUCCESS", "000000000000002")
    assert waiter() is None, "the place is free before the task ends"


def test_while_one_waits_the_others_are_published_again_each_with_its_own_place(
    hot, deliver, syncguard_backend, long_slot_wait, waiter, in_a_slot, eventually
):
    holder = syncguard_backend.acquire("hot", 600_000)
    for _ in range(4):
        hot.delay()
    waiting = in_a_slot(deliver)
    ticket = eventually(waiter)
    assert [deliver().state for _ in range(3)] == ["RETRY"] * 3
    assert waiter() == ticket
    again = [deliver() for _ in range(3)]
    places = [delivered.came_with["place"] for delivered in again]
    assert places == sorted(set(places))
    assert [delivered.came_with["attempts"] for delivered in again] == [1, 1, 1]
    holder.release()
    assert waiting().state == "SUCCESS"
    assert [deliver().state for _ in range(3)] == ["SUCCESS"] * 3


def test_the_next_task_may_wait_while_the_task_that_waited_runs(
    app, deliver, syncguard_backend, long_slot_wait, waiter, in_a_slot, eventually
):
    go = threading.Event()

    @locked_task(app=app, name="staying", key="hot")
    def staying():
        go.wait(60)

    holder = syncguard_backend.acquire("hot", 600_000)
    staying.delay()
    staying.delay()
    first = in_a_slot(deliver)
    ticket = eventually(waiter)
    holder.release()
    eventually(lambda: waiter() is None)
    second = in_a_slot(deliver)
    assert eventually(waiter) != ticket
    go.set()
    assert (first().state, second().state) == ("SUCCESS", "SUCCESS")


@pytest.mark.usefixtures("long_attempts")
def test_a_task_whose_wait_ends_without_the_lock_is_published_again_and_frees_its_place(
    hot, deliver, syncguard_backend, monkeypatch, waiter
):
    for module in (contention, hot_key_turns):
        monkeypatch.setattr(module, "SLOT_WAIT_MS", 60)
    with syncguard_backend.acquire("hot", 600_000):
        hot.delay()
        assert deliver().state == "RETRY"
        assert waiter() is None
    assert deliver().state == "SUCCESS"


@pytest.mark.usefixtures("long_attempts")
def test_a_wait_in_a_slot_ends_with_the_contention_timeout(
    app, deliver, syncguard_backend, long_slot_wait, waiter
):
    @locked_task(app=app, name="impatient", key="hot", contention_timeout_ms=100)
    def impatient(): ...

    with syncguard_backend.acquire("hot", 600_000):
        impatient.delay()
        delivered = deliver()
        assert delivered.state == "FAILURE"
        assert waiter() is None


def test_a_soft_time_limit_ends_the_wait_and_frees_the_place(
    prefork, worker_app, scene, lock_server, eventually
):
    holder = worker_app.visiting.apply_async((scene.name, True), queue=prefork.queue)
    scene.seen("enter")
    with lock_server.client() as client:
        # It waits for 2 s. A busy machine needs more than a second until it waits.
        second = worker_app.visiting.apply_async(
            (scene.name,), queue=prefork.queue, soft_time_limit=1.7
        )
        with pytest.raises(SoftTimeLimitExceeded):
            second.get(timeout=100)
        queue = f"syncguard:id::queue:syncguard:visit:{scene.name}"
        eventually(lambda: client.hget(queue, "waiter") is None)
    scene.go()
    holder.get(timeout=30)


@pytest.mark.usefixtures("long_attempts")
def test_contention_and_acquisition_of_a_task_are_logged_once_each(
    hot, deliver, syncguard_backend, monkeypatch, caplog
):
    for module in (contention, hot_key_turns):
        monkeypatch.setattr(module, "SLOT_WAIT_MS", 10)
    caplog.set_level(logging.INFO, "syncguard.celery")
    with syncguard_backend.acquire("hot", 600_000):
        hot.delay()
        assert [deliver().state for _ in range(4)] == ["RETRY"] * 4
    assert deliver().state == "SUCCESS"
    lines = [record.getMessage() for record in caplog.records if record.name == "syncguard.celery"]
    assert len(lines) == 2
    assert "found its lock held by somebody else: retry" in lines[0]
    assert "acquired its lock" in lines[1]


def test_a_task_that_meets_no_contention_logs_nothing(hot, deliver, caplog):
    caplog.set_level(logging.INFO, "syncguard.celery")
    hot.delay()
    assert deliver().state == "SUCCESS"
    assert not [record for record in caplog.records if record.name == "syncguard.celery"]


def test_many_tasks_on_one_key_run_one_at_a_time_in_a_real_worker(
    prefork, worker_app, scene, eventually
):
    tasks = 24
    results = [
        worker_app.visiting.apply_async((scene.name, False, 0.02), queue=prefork.queue)
        for _ in range(tasks)
    ]
    fences = [result.get(timeout=60) for result in results]
    assert sorted(fences) == [f"{n:015d}" for n in range(1, tasks + 1)]
    assert scene.events() == ["enter", "leave"] * tasks
    logged = Counter()
    for line in prefork.log.splitlines():
        for result in results:
            if result.id in line and "INFO" in line:
                logged[result.id] += "its lock" in line
    assert max(logged.values()) <= 2


def test_with_a_backend_without_a_queue_a_task_is_published_again_without_a_place(
    app, deliver, syncguard_backend
):
    @locked_task(app=app, name="queueless", key="hot", backend=WithoutQueue(syncguard_backend))
    def queueless(): ...

    with syncguard_backend.acquire("hot", 600_000):
        queueless.delay()
        assert [deliver().state for _ in range(2)] == ["RETRY"] * 2
        again = deliver()
    assert again.came_with["attempts"] == 2
    assert "place" not in again.came_with


def test_the_delay_is_below_the_visibility_timeout_of_the_broker(
    app, hot, deliver, syncguard_backend, syncguard_redis
):
    app.conf.broker_transport_options = {"visibility_timeout": 4}
    with syncguard_redis.client() as client:
        client.hset("syncguard:id::queue:syncguard:hot", "holdMs", 60_000)
    with syncguard_backend.acquire("hot", 600_000):
        hot.delay()
        delivered = deliver()
    assert (delivered.state, delivered.result.exception.exc.when) == ("RETRY", 2.0)


def test_an_invalid_place_is_ignored(hot, deliver, syncguard_backend, monkeypatch):
    monkeypatch.setattr(
        hot_key_turns, "header_of", lambda _request: {"place": "soon", "attempts": -1}
    )
    with syncguard_backend.acquire("hot", 600_000):
        turn = hot_key_turns.next_turn(syncguard_backend, "hot", None, None, waits=False)
    assert isinstance(turn, Turn)
    assert turn.place_ms > 0


def test_the_delay_grows_with_the_number_of_attempts(syncguard_backend, monkeypatch):
    def delay_ms(attempts):
        monkeypatch.setattr(hot_key_turns, "header_of", lambda _request: {"attempts": attempts})
        with syncguard_backend.acquire("hot", 600_000):
            return hot_key_turns.next_turn(
                syncguard_backend, "hot", None, None, waits=False
            ).delay_ms

    assert delay_ms(8) >= 600
    assert delay_ms(15) >= 9_000
    assert delay_ms(10_000) == hot_key_turns.MAX_DELAY_MS


@pytest.mark.usefixtures("long_attempts")
def test_a_task_that_met_contention_reports_to_the_queue_how_long_it_held_the_lock(
    hot, deliver, syncguard_backend, syncguard_redis, monkeypatch
):
    monkeypatch.setattr(hot_key_turns, "_holds", {})
    for module in (contention, hot_key_turns):
        monkeypatch.setattr(module, "SLOT_WAIT_MS", 10)
    hot.delay()
    assert deliver().state == "SUCCESS"
    assert hot_key_turns._holds == {}, "no task waited, so no time is kept"
    with syncguard_backend.acquire("hot", 600_000):
        hot.delay()
        assert deliver().state == "RETRY"
    assert deliver().state == "SUCCESS"
    assert set(hot_key_turns._holds) == {"hot"}
    with syncguard_backend.acquire("hot", 600_000), syncguard_redis.client() as client:
        hot.delay()
        assert deliver().state == "RETRY"
        assert int(client.hget("syncguard:id::queue:syncguard:hot", "holdMs")) >= 1
        assert hot_key_turns._holds == {}, "reported once"


def test_hold_times_are_kept_for_a_limited_number_of_keys(monkeypatch):
    monkeypatch.setattr(hot_key_turns, "_holds", {})
    for number in range(1_000):
        hot_key_turns.record_hold(f"k{number}", 100.0)
    assert len(hot_key_turns._holds) == 256
    assert "k999" in hot_key_turns._holds
    assert hot_key_turns._holds["k999"] == 100
