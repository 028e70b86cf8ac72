"""Calls without a message: direct, eager, mapped. In this process, on a real Redis."""

from __future__ import annotations

import threading
import time

import pytest
from call_later import call_later
from wrapped_backends import release_as_administrator

from syncguard import LockError, LockLost
from syncguard_celery import (
    LockContended,
    contention,
    current_fence,
    locked_task,
    task_lock_contended,
)


def test_a_direct_call_is_locked(settle, syncguard_backend):
    assert settle(42) == "000000000000001"
    assert not syncguard_backend.is_locked("invoice:42")


def test_a_direct_call_waits_and_then_raises_lock_contended(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        with pytest.raises(LockContended) as raised:
            settle(42)
    assert raised.value.fence == "000000000000001"


def test_a_direct_call_waits_no_longer_than_its_contention_timeout(
    settle, syncguard_backend, monkeypatch
):
    acquisition_within, limits_ms = contention.acquisition_within, []

    def record_limit(timeout_ms):
        limits_ms.append(timeout_ms)
        return acquisition_within(timeout_ms)

    monkeypatch.setattr(contention, "acquisition_within", record_limit)
    with syncguard_backend.acquire("invoice:42", 20_000):
        started = time.monotonic()
        with pytest.raises(LockContended):
            settle(42)
    assert time.monotonic() - started >= 0.3
    assert limits_ms == [300]


def test_waiting_is_limited_by_time_and_not_by_the_number_of_attempts(app, syncguard_backend):
    @locked_task(app=app, name="waiting", key="k", contention_timeout_ms=20_000)
    def waiting():
        return current_fence()

    held = syncguard_backend.acquire("k", 20_000)
    with call_later(2.2, held.release):  # the fifth attempt, with two a second
        assert waiting() == "000000000000002"


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_call_with_policy_skip_or_fail_does_not_wait(app, syncguard_backend, policy):
    @locked_task(app=app, name="hasty", key="k", on_contention=policy, skip_result="skipped")
    def hasty():
        return "ran"

    held = syncguard_backend.acquire("k", 20_000)

    def release(**_facts):
        held.release()

    task_lock_contended.connect(release)  # a call that waits would get it now
    try:
        if policy == "skip":
            assert hasty() == "skipped"
        else:
            with pytest.raises(LockContended):
                hasty()
    finally:
        task_lock_contended.disconnect(release)


def test_a_direct_call_gets_the_lock_when_it_is_released(app, syncguard_backend):
    @locked_task(app=app, name="waiting", key="invoice:{invoice_id}", contention_timeout_ms=60_000)
    def waiting(invoice_id):
        return current_fence()

    held = syncguard_backend.acquire("invoice:42", 20_000)
    with call_later(0.2, held.release):
        assert waiting(42) == "000000000000002"


class TestAcquiredAtOnceOrAfterWaiting:
    """A lock is the same whether it was acquired at once or after waiting."""

    @pytest.fixture(params=["at once", "after waiting"])
    def call(self, request, syncguard_backend):
        def call(task):
            if request.param == "at once":
                return task()
            with call_later(0.2, syncguard_backend.acquire("k", 20_000).release):
                return task()

        return call

    def test_its_holder_has_a_label(self, app, syncguard_backend, call):
        @locked_task(app=app, name="look", key="k", contention_timeout_ms=60_000)
        def look():
            return syncguard_backend.lookup(key="k").holder

        assert call(look).startswith("look@")

    def test_losing_the_lock_interrupts_the_call(self, app, syncguard_backend, call):
        @locked_task(app=app, name="lose", key="k", ttl_ms=3_000, contention_timeout_ms=60_000)
        def lose():
            release_as_administrator(syncguard_backend, "k")
            threading.Event().wait(60)
            survived.append("to the end")

        survived = []
        with pytest.raises(LockLost):
            call(lose)
        assert not survived

    def test_max_hold_ms_ends_the_lock(self, app, call):
        @locked_task(
            app=app,
            name="hang",
            key="k",
            ttl_ms=1_000,
            max_hold_ms=1_500,
            contention_timeout_ms=60_000,
        )
        def hang():
            threading.Event().wait(60)
            survived.append("to the end")

        survived = []
        with pytest.raises(LockLost):
            call(hang)
        assert not survived

    def test_without_auto_extend_the_lock_expires_after_its_ttl(
        self, app, syncguard_backend, eventually, call
    ):
        @locked_task(
            app=app,
            name="brief",
            key="k",
            ttl_ms=1_000,
            auto_extend=False,
            contention_timeout_ms=60_000,
        )
        def brief():
            eventually(lambda: not syncguard_backend.is_locked("k"), 60)

        with pytest.raises(LockLost):
            call(brief)


def test_an_eager_run_waits_and_then_fails(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        result = settle.apply((42,))
    assert isinstance(result.result, LockContended)


def test_map_and_chunks_are_locked(settle):
    tasks = settle.app.tasks
    assert tasks["celery.map"](settle.s(), [1, 2]) == ["000000000000001", "000000000000001"]
    # chunks are starmaps
    chunk = [(1,), (1,)]
    assert tasks["celery.starmap"](settle.s(), chunk) == ["000000000000002", "000000000000003"]


def test_run_is_locked(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        with pytest.raises(LockContended):
            settle.run(42)


def test_a_direct_holder_has_a_label_without_an_id(app, syncguard_backend):
    @locked_task(app=app, name="look", key="look")
    def look():
        return syncguard_backend.lookup(key="look").holder

    assert look().startswith("look@")


def test_an_error_of_the_lock_service_is_raised(settle, syncguard_redis):
    syncguard_redis.kill()
    with pytest.raises(LockError) as raised:
        settle(42)
    assert raised.value.code in ("ServiceUnavailable", "NetworkTimeout")


def test_a_policy_that_does_not_exist_is_refused(app, syncguard_backend):
    @locked_task(app=app, name="lost", key="k", on_contention=lambda: "whatever")
    def task(): ...

    with syncguard_backend.acquire("k", 20_000), pytest.raises(LockError, match="must return"):
        task()


def test_a_policy_can_be_chosen_for_a_direct_call(app, syncguard_backend):
    @locked_task(app=app, name="lost", key="k", on_contention=lambda: "skip", skip_result="no")
    def task(): ...

    with syncguard_backend.acquire("k", 20_000):
        assert task() == "no"


def test_the_backend_comes_from_djangos_settings(app, syncguard_redis, settings):
    settings.SYNCGUARD = {
        "default": {"BACKEND": "syncguard.redis.RedisBackend", "LOCATION": syncguard_redis.url},
        "other": {
            "BACKEND": "syncguard.redis.RedisBackend",
            "LOCATION": syncguard_redis.url,
            "KEY_PREFIX": "other",
        },
    }

    @locked_task(app=app, name="django", key="k", using="other")
    def task():
        with syncguard_redis.client() as client:
            return client.exists("other:k")

    assert task() == 1


def test_the_key_is_computed_once(app):
    computed = []

    def key(box):
        computed.append(box)
        return f"box:{len(box)}"

    @locked_task(app=app, name="once", key=key)
    def grow(box):
        box.append("another")  # at the end, the key would be different

    grow([])
    assert len(computed) == 1
