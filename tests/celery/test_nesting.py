"""Nested locks in one call stack, on one key or several."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from celery import Task
from wrapped_backends import WrappedBackend, release_as_administrator

from syncguard import LockLost
from syncguard.redis import RedisBackend
from syncguard_celery import (
    LockContended,
    current_fence,
    current_lock,
    inherited_fence,
    locked,
    locked_task,
    task_lock_lost,
)
from syncguard_celery.message_header import key_digest
from syncguard_celery.running_calls import enclosing


def test_a_plain_function_can_be_locked_inside_a_task(app, syncguard_backend):
    @locked(key="helper:{n}", backend=syncguard_backend)
    def helper(n):
        return syncguard_backend.lookup(key=f"helper:{n}").holder

    @app.task(name="plain")
    def plain():
        return helper(1)

    assert "helper@" in plain()


def test_a_nested_lock_is_released_before_the_outer_one(app, syncguard_backend):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        return current_fence(), syncguard_backend.is_locked("outer")

    @locked_task(app=app, name="outer", key="outer")
    def outer():
        inside = inner()
        return inside, syncguard_backend.is_locked("inner"), current_lock().lost

    assert outer() == (("000000000000001", True), False, False)


def test_reentering_a_lost_lock_raises(app, syncguard_backend):
    depths = []

    @locked_task(app=app, name="again", key="again", ttl_ms=3_000, on_lost="signal")
    def again(depth):
        depths.append(depth)
        if depth:
            return None
        release_as_administrator(syncguard_backend, "again")
        while not current_lock().lost:
            pass
        return again(1)

    with pytest.raises(LockLost):
        again(0)
    assert depths == [0]


def test_the_same_key_in_another_backend_is_another_lock(app, syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url, key_prefix="other") as other:

        @locked(key="k", backend=other)
        def inner():
            return other.is_locked("k")

        @locked_task(app=app, name="outer", key="k")
        def outer():
            return inner()

        assert outer()


def test_a_task_that_runs_itself_inherits_its_own_fences(app):
    @locked_task(app=app, name="descend", key="level:{level}")
    def descend(level):
        if level < 2:
            return descend.apply((level + 1,)).result
        return [inherited_fence(f"level:{above}") for above in range(3)]

    assert descend.apply((0,)).result == ["000000000000001", "000000000000001", None]


def test_losing_the_outer_lock_interrupts_the_inner_task_and_releases_both(app, syncguard_backend):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        release_as_administrator(syncguard_backend, "outer")
        threading.Event().wait(20)

    @locked_task(app=app, name="outer", key="outer", ttl_ms=3_000)
    def outer():
        inner()

    with pytest.raises(LockLost):
        outer()
    assert not syncguard_backend.is_locked("inner")


@pytest.fixture
def lost():
    """Set when a lock was lost and the interrupt has been sent."""
    event = threading.Event()

    def receiver(**_facts):
        event.set()

    task_lock_lost.connect(receiver)
    yield event
    task_lock_lost.disconnect(receiver)


@pytest.mark.parametrize("on_lost", ["signal", lambda: None], ids=["signal", "callable"])
def test_a_task_without_interrupts_can_acquire_another_lock_after_a_loss(
    app, syncguard_backend, lost, on_lost
):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        ran.append("inner")

    @locked_task(app=app, name="outer", key="outer", ttl_ms=3_000, on_lost=on_lost)
    def outer():
        release_as_administrator(syncguard_backend, "outer")
        assert lost.wait(10)
        inner()
        ran.append("outer")

    ran = []
    with pytest.raises(LockLost):
        outer()
    assert ran == ["inner", "outer"]


@pytest.mark.parametrize("moment", ["acquire", "release"])
def test_losing_the_outer_lock_does_not_interrupt_acquiring_or_releasing_the_inner_one(
    app, syncguard_backend, lost, moment
):
    class LosesOuterLock(WrappedBackend):
        """Loses the outer lock between the server's answer and the return of the call."""

        def acquire(self, *args, **options):
            answer = self.backend.acquire(*args, **options)
            if moment == "acquire":
                self.lose()
            return answer

        def release(self, *args, **options):
            if moment == "release" and not lost.is_set():
                self.lose()
            return self.backend.release(*args, **options)

        def lose(self):
            release_as_administrator(syncguard_backend, "outer")
            assert lost.wait(10)
            moments.append(moment)

    @locked(key="inner", backend=LosesOuterLock(syncguard_backend), ttl_ms=20_000)
    def inner(): ...

    @locked_task(app=app, name="outer", key="outer", ttl_ms=3_000)
    def outer():
        inner()
        survived.append("to the end")

    moments, survived = [], []
    with pytest.raises(LockLost):
        outer()
    assert moments == [moment]
    assert not survived
    assert not syncguard_backend.is_locked("inner")


class TestACopiedContext:
    """A thread that got the context of a task, and runs a locked task itself."""

    @pytest.fixture
    def inner(self, app):
        @locked_task(app=app, name="inner", key="k", on_contention="fail")
        def inner():
            return current_fence()

        return inner

    @pytest.fixture
    def context(self, app):
        """The context of a task that has ended."""

        @locked_task(app=app, name="outer", key="k")
        def outer():
            return copy_context()

        return outer()

    def test_acquires_for_itself_after_the_task_has_ended(self, inner, context):
        assert context.run(current_lock) is None
        with ThreadPoolExecutor(1) as other:
            assert other.submit(context.run, inner).result() == "000000000000002"

    def test_is_refused_while_somebody_else_holds_the_lock(self, inner, context, syncguard_backend):
        with syncguard_backend.acquire("k", 60_000), ThreadPoolExecutor(1) as other:
            assert isinstance(other.submit(context.run, inner).exception(), LockContended)

    def test_has_no_calls_that_a_loss_would_interrupt(self, context):
        assert context.run(lambda: list(enclosing())) == []

    def test_does_not_get_the_interrupt_of_the_task(self, app, syncguard_backend, lost):
        class LosesOuterLock(WrappedBackend):
            def acquire(self, *args, **options):
                release_as_administrator(syncguard_backend, "outer")
                assert lost.wait(20)
                return self.backend.acquire(*args, **options)

        @locked(key="inner", backend=LosesOuterLock(syncguard_backend), ttl_ms=60_000)
        def inner():
            return "ran"

        @locked_task(app=app, name="outer", key="outer", ttl_ms=3_000)
        def outer():
            inside.append(other.submit(copy_context().run, inner))
            threading.Event().wait(60)
            raise AssertionError("not interrupted")

        inside = []
        with ThreadPoolExecutor(1) as other, pytest.raises(LockLost):
            outer()
        assert inside[0].result() == "ran"


class TestTwoLocksUnderOneTask:
    @pytest.fixture
    def transfer(self, app):
        @app.task(name="transfer", shared=False)
        @locked(key="account:{source}")
        @locked(key="account:{target}")
        def transfer(source, target):
            child.delay()
            return current_fence()

        @app.task(name="child", shared=False)
        def child(): ...

        return transfer

    def test_contention_on_the_inner_lock_releases_the_outer_and_retries_the_task(
        self, deliver, transfer, syncguard_backend
    ):
        with syncguard_backend.acquire("account:2", 60_000):
            transfer.delay(1, 2)
            assert deliver().state == "RETRY"
            assert not syncguard_backend.is_locked("account:1")
        assert deliver().result == "000000000000002"

    def test_both_fences_are_sent_to_published_tasks(self, deliver, transfer):
        transfer.delay(1, 2)
        deliver()
        assert set(deliver().came_with["fences"]) == {key_digest(f"account:{n}") for n in (1, 2)}


def test_a_class_based_task_that_meets_contention_is_retried(app, deliver, syncguard_backend):
    class Settle(Task):
        name = "settle-by-class"

        @locked(key="invoice:{invoice_id}")
        def run(self, invoice_id):
            return invoice_id

    settle = app.register_task(Settle())
    with syncguard_backend.acquire("invoice:42", 60_000):
        settle.delay(42)
        assert deliver().state == "RETRY"
    assert deliver().result == 42


def test_what_is_published_under_a_plain_function_carries_its_fence(app, deliver):
    @app.task(name="child", shared=False)
    def child():
        return inherited_fence("helper")

    @locked(key="helper", backend=lambda: app.conf.syncguard_backend)
    def helper():
        child.delay()

    helper()
    assert deliver().result == "000000000000001"


def test_a_retry_published_inside_another_task_waits_for_its_previous_run(app, deliver):
    @app.task(name="part", shared=False)
    def part():
        raise whole.retry(countdown=1)

    @locked_task(app=app, name="whole", key="k", bind=True)
    def whole(self):
        return current_fence() if self.request.retries else part()

    whole.delay()
    deliver()
    assert deliver().came_with["after"] == {key_digest("k"): "000000000000001"}
