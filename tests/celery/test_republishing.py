"""Whether and when a task comes back: foreseen retries, contention, holders that slip away."""

from __future__ import annotations

import datetime
import time

import pytest
from celery.app.task import Context
from celery.exceptions import Ignore, Retry
from celery.signals import after_task_publish
from wrapped_backends import RefusesSome, WithoutQueue, WrappedBackend

from syncguard_celery import (
    LockContended,
    current_fence,
    locked_task,
)
from syncguard_celery.contention import republish
from syncguard_celery.contention_turns import next_turn
from syncguard_celery.message_header import HEADER, key_digest
from syncguard_celery.publish_lock.apply_async import _delay_ms
from syncguard_celery.release import ends_in_retry
from syncguard_celery.task_call import Call


def test_a_task_that_publishes_another_of_its_kind_is_no_retry(app, syncguard_backend):
    @locked_task(app=app, name="spawn", key="spawned:{n}", at="publish")
    def spawn(n):
        if n == 1:
            spawn.apply_async((2,), task_id="the-second")

    spawn.apply((1,), task_id="the-first").get()
    assert "spawn[the-second]@" in syncguard_backend.lookup(key="spawned:2").holder


class TestRetryForeseen:
    """``autoretry_for`` acts outside of the lock: whether it will has to be known before."""

    @pytest.fixture
    def call(self, app):
        @app.task(
            name="flaky",
            shared=False,
            autoretry_for=(OSError,),
            dont_autoretry_for=(FileNotFoundError,),
            max_retries=2,
        )
        def flaky(): ...

        def make(retries=0, **request):
            context = Context(id="x", retries=retries, called_directly=False, **request)
            return Call(flaky.name, flaky, context, app)

        flaky.name  # noqa: B018 - made now
        return make

    def test_errors_that_are_retried_and_those_that_are_not(self, call):
        assert ends_in_retry(call(), OSError())
        assert ends_in_retry(call(), Retry())
        assert not ends_in_retry(call(), None)
        assert not ends_in_retry(call(), ValueError())
        assert not ends_in_retry(call(), FileNotFoundError())
        assert not ends_in_retry(call(), Ignore())

    def test_retries_that_are_used_up(self, call):
        assert ends_in_retry(call(retries=1), OSError())
        assert not ends_in_retry(call(retries=2), OSError())

    def test_a_limit_for_this_run(self, call):
        made = call(retries=2)
        made.task.override_max_retries = 5
        assert ends_in_retry(made, OSError())

    def test_a_limit_for_autoretry_alone(self, call):
        made = call(retries=2)
        made.task.retry_kwargs = {"max_retries": 3}
        assert ends_in_retry(made, OSError())
        assert not ends_in_retry(call(retries=3), OSError())

    def test_without_a_limit(self, call):
        made = call(retries=99)
        made.task.max_retries = None
        assert ends_in_retry(made, OSError())

    def test_a_direct_call_is_not_retried(self, call):
        made = call()
        made.request.called_directly = True
        assert not ends_in_retry(made, OSError())


class TestComingBack:
    """Without a queue for its key, a task that met contention is published again: when, and what
    the message says."""

    @pytest.fixture
    def come_back(self, app, syncguard_backend):
        @app.task(name="contending", shared=False)
        def contending(): ...

        def come_back(attempts=0, left=None):
            header = {"attempts": attempts, "since": 1_000} if attempts else {}
            context = Context(id="x", args=(), kwargs={}, called_directly=False, **{HEADER: header})
            call = Call(contending.name, contending, context, app)
            turn = next_turn(WithoutQueue(syncguard_backend), "k", context, left, waits=True)
            return republish(call, LockContended(), turn).when

        return come_back

    def test_later_each_time_but_not_later_than_in_ten_seconds(self, come_back):
        for attempts, most in [(0, 0.2), (1, 0.4), (2, 0.8), (5, 6.4), (6, 10), (10_000, 10)]:
            assert most / 2 <= come_back(attempts) <= most

    def test_not_all_at_the_same_time(self, come_back):
        assert len({come_back() for _ in range(10)}) > 1

    def test_before_its_time_is_over(self, come_back):
        assert come_back(attempts=9, left=50.0) <= 0.05

    def test_the_message_counts_the_attempts_and_keeps_the_beginning(self, come_back):
        sent = []

        def receiver(headers=None, **_):
            sent.append(headers[HEADER])

        after_task_publish.connect(receiver)
        try:
            come_back()
            come_back(attempts=3)
        finally:
            after_task_publish.disconnect(receiver)
        first, fourth = sent
        assert first["attempts"] == 1
        assert abs(first["since"] - time.time() * 1000) < 10_000
        assert fourth == {"attempts": 4, "since": 1_000}


def test_a_retry_that_somebody_else_overtakes_meets_contention(app, syncguard_backend, monkeypatch):
    class Overtaken(WrappedBackend):
        """Its first look still sees the predecessor; then somebody else is there."""

        def lookup(self, **options):
            info = self.backend.lookup(**options)
            if predecessor.release().ok:
                self.backend.acquire("k", 3_000, holder="somebody else")
            return info

    @locked_task(
        app=app,
        name="overtaken",
        key="k",
        backend=Overtaken(syncguard_backend),
        on_contention="skip",
        skip_result="overtaken",
    )
    def task():
        return "ran"

    monkeypatch.setattr("syncguard_celery.acquire._PREDECESSOR_WAIT_MS", 200)
    predecessor = syncguard_backend.acquire("k", 20_000)
    came_with = {"after": {key_digest("k"): predecessor.fence}}
    assert task.apply(headers={HEADER: came_with}).get() == "overtaken"


def test_eta_and_countdown_add_to_the_time_that_a_lock_waits(app):
    @app.task(name="timed", shared=False)
    def timed(): ...

    soon = app.now() + datetime.timedelta(seconds=60)
    for options in ({"countdown": 60}, {"eta": soon}, {"eta": soon.isoformat()}):
        assert 50_000 < _delay_ms(timed, options) <= 60_000
    assert _delay_ms(timed, {"countdown": -5}) == 0
    assert _delay_ms(timed, {}) == 0


def test_a_holder_that_slips_away_is_no_contention(app, syncguard_backend):
    """It lets go between the attempt and the look at it: even "fail" then gets the lock."""

    slippery = RefusesSome(syncguard_backend, refusals=1)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task():
        return current_fence()

    assert task() == "000000000000002"


def test_a_holder_that_always_slips_away_is_contention_with_nobody(app, syncguard_backend):
    slippery = RefusesSome(syncguard_backend, refusals=99)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task(): ...

    with pytest.raises(LockContended) as raised:
        task()
    assert raised.value.key_hash == syncguard_backend.hash("k")
    assert (raised.value.fence, raised.value.remaining_ms) == (None, None)


def test_a_holder_that_slips_away_from_a_publisher_is_no_twin(app, syncguard_backend):
    slippery = RefusesSome(syncguard_backend, refusals=2)

    @locked_task(app=app, name="slip", key="k", backend=slippery, at="publish")
    def task(): ...

    result = task.delay()
    assert f"slip[{result.id}]@" in syncguard_backend.lookup(key="k").holder
