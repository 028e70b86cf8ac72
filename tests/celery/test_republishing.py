"""Whether and when a task is published again: retries, contention, locks released meanwhile."""

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
from syncguard_celery.hot_key_turns import next_turn
from syncguard_celery.message_header import HEADER, key_digest
from syncguard_celery.publish_lock.apply_async import _delay_ms
from syncguard_celery.release import ends_in_retry
from syncguard_celery.task_call import Call


def test_publishing_another_run_of_the_same_task_is_not_a_retry(app, syncguard_backend):
    @locked_task(app=app, name="spawn", key="spawned:{n}", at="publish")
    def spawn(n):
        if n == 1:
            spawn.apply_async((2,), task_id="the-second")

    spawn.apply((1,), task_id="the-first").get()
    assert "spawn[the-second]@" in syncguard_backend.lookup(key="spawned:2").holder


class TestEndsInRetry:
    """``autoretry_for`` acts after the release, so a retry has to be predicted before it."""

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

        flaky.name  # noqa: B018 - makes the task now
        return make

    def test_autoretry_for_and_dont_autoretry_for_decide_whether_a_task_is_retried(self, call):
        assert ends_in_retry(call(), OSError())
        assert ends_in_retry(call(), Retry())
        assert not ends_in_retry(call(), None)
        assert not ends_in_retry(call(), ValueError())
        assert not ends_in_retry(call(), FileNotFoundError())
        assert not ends_in_retry(call(), Ignore())

    def test_a_task_is_not_retried_after_its_last_retry(self, call):
        assert ends_in_retry(call(retries=1), OSError())
        assert not ends_in_retry(call(retries=2), OSError())

    def test_a_limit_for_this_run_is_used(self, call):
        made = call(retries=2)
        made.task.override_max_retries = 5
        assert ends_in_retry(made, OSError())

    def test_a_limit_in_retry_kwargs_is_used(self, call):
        made = call(retries=2)
        made.task.retry_kwargs = {"max_retries": 3}
        assert ends_in_retry(made, OSError())
        assert not ends_in_retry(call(retries=3), OSError())

    def test_a_task_without_a_limit_is_always_retried(self, call):
        made = call(retries=99)
        made.task.max_retries = None
        assert ends_in_retry(made, OSError())

    def test_a_direct_call_is_not_retried(self, call):
        made = call()
        made.request.called_directly = True
        assert not ends_in_retry(made, OSError())


class TestPublishedAgainAfterContention:
    """Without a queue for its key, a task that met contention is published again: its delay and
    its header."""

    @pytest.fixture
    def published_delay(self, app, syncguard_backend):
        @app.task(name="contending", shared=False)
        def contending(): ...

        def published_delay(attempts=0, left=None):
            header = {"attempts": attempts, "since": 1_000} if attempts else {}
            context = Context(id="x", args=(), kwargs={}, called_directly=False, **{HEADER: header})
            call = Call(contending.name, contending, context, app)
            turn = next_turn(WithoutQueue(syncguard_backend), "k", context, left, waits=True)
            return republish(call, LockContended(), turn).when

        return published_delay

    def test_the_delay_grows_up_to_ten_seconds(self, published_delay):
        for attempts, most in [(0, 0.2), (1, 0.4), (2, 0.8), (5, 6.4), (6, 10), (10_000, 10)]:
            assert most / 2 <= published_delay(attempts) <= most

    def test_the_delay_is_random(self, published_delay):
        assert len({published_delay() for _ in range(10)}) > 1

    def test_the_delay_ends_before_the_contention_timeout(self, published_delay):
        assert published_delay(attempts=9, left=50.0) <= 0.05

    def test_the_message_has_the_number_of_attempts_and_the_start_of_contention(
        self, published_delay
    ):
        sent = []

        def receiver(headers=None, **_):
            sent.append(headers[HEADER])

        after_task_publish.connect(receiver)
        try:
            published_delay()
            published_delay(attempts=3)
        finally:
            after_task_publish.disconnect(receiver)
        first, fourth = sent
        assert first["attempts"] == 1
        assert abs(first["since"] - time.time() * 1000) < 10_000
        assert fourth == {"attempts": 4, "since": 1_000}


@pytest.mark.usefixtures("long_attempts")
def test_a_retry_meets_contention_if_another_holder_acquires_the_lock_first(
    app, syncguard_backend, monkeypatch
):
    class Overtaken(WrappedBackend):
        """Its first lookup returns the previous run; then another holder has the lock."""

        def lookup(self, **options):
            info = self.backend.lookup(**options)
            if predecessor.release().ok:
                self.backend.acquire("k", 60_000, holder="somebody else")
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

    monkeypatch.setattr("syncguard_celery.contention._PREDECESSOR_WAIT_MS", 200)
    predecessor = syncguard_backend.acquire("k", 20_000)
    came_with = {"after": {key_digest("k"): predecessor.fence}}
    assert task.apply(headers={HEADER: came_with}).get() == "overtaken"


def test_eta_and_countdown_are_added_to_the_pending_ttl(app):
    @app.task(name="timed", shared=False)
    def timed(): ...

    soon = app.now() + datetime.timedelta(seconds=60)
    for options in ({"countdown": 60}, {"eta": soon}, {"eta": soon.isoformat()}):
        assert 50_000 < _delay_ms(timed, options) <= 60_000
    assert _delay_ms(timed, {"countdown": -5}) == 0
    assert _delay_ms(timed, {}) == 0


def test_a_lock_released_before_the_lookup_is_not_contention(app, syncguard_backend):
    """It is released between the attempt and the lookup: even "fail" then gets the lock."""

    slippery = RefusesSome(syncguard_backend, refusals=1)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task():
        return current_fence()

    assert task() == "000000000000002"


def test_a_lock_always_released_before_the_lookup_is_contention_without_a_holder(
    app, syncguard_backend
):
    slippery = RefusesSome(syncguard_backend, refusals=99)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task(): ...

    with pytest.raises(LockContended) as raised:
        task()
    assert raised.value.key_hash == syncguard_backend.hash("k")
    assert (raised.value.fence, raised.value.remaining_ms) == (None, None)


def test_a_lock_released_before_the_lookup_is_not_a_duplicate_for_a_publisher(
    app, syncguard_backend
):
    slippery = RefusesSome(syncguard_backend, refusals=2)

    @locked_task(app=app, name="slip", key="k", backend=slippery, at="publish")
    def task(): ...

    result = task.delay()
    assert f"slip[{result.id}]@" in syncguard_backend.lookup(key="k").holder
