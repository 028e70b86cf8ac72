"""``syncguard_celery.testing``: the helpers for users' tests."""

from __future__ import annotations

import pytest
from celery import Celery

from syncguard_celery import current_fence, current_lock, locked_task
from syncguard_celery.testing import assert_locks, assert_runs_unlocked, lock_key, unlocked


@pytest.fixture(scope="module")
def app():
    app = Celery("testing", broker="memory://", fixups=[], set_as_current=False)
    app.conf.syncguard_backend = "redis://127.0.0.1:1/0"  # no server listens there
    yield app
    app.close()


@pytest.fixture(scope="module")
def settle(app):
    @locked_task(app=app, key="invoice:{invoice_id}", at="publish")
    def settle(invoice_id):
        current_lock().ensure_held()
        return current_fence()

    return settle


def test_unlocked_tasks_need_no_redis(settle):
    with unlocked():
        assert settle(42)
        assert settle.apply((42,)).get()
        settle.delay(42)


def test_unlocked_works_as_a_decorator_and_nests(settle):
    @unlocked()
    def test():
        with unlocked():
            settle(42)
        return settle(42)

    assert test()


def test_the_fences_of_unlocked_tasks_grow(settle):
    with unlocked():
        fences = [settle(number) for number in (42, 43, 42)]
    assert fences == sorted(set(fences))
    assert all(len(fence) == 15 and fence.isdecimal() for fence in fences)
    assert current_lock() is None


def test_an_unlocked_task_that_calls_itself_has_one_fence_for_both(app, settle):
    @locked_task(app=app, key="invoice:{invoice_id}")
    def outer(invoice_id):
        return current_fence(), settle(invoice_id), settle(invoice_id + 1), current_fence()

    with unlocked():
        before, inner, other, after = outer(42)
    assert before == inner == after < other


def test_an_unlocked_task_without_a_key_has_no_fence(app):
    @locked_task(app=app, key=lambda n: None)
    def fenceless(n):
        return current_fence()

    with unlocked():
        assert fenceless(1) is None


def test_lock_key_and_assert_locks_show_the_key_of_a_call(settle):
    assert lock_key(settle, 42) == "invoice:42"
    assert_locks(settle, "invoice:42", invoice_id=42)
    with pytest.raises(AssertionError, match="would lock 'invoice:42', not 'invoice:43'"):
        assert_locks(settle, "invoice:43", 42)


def test_lock_key_takes_the_arguments_of_a_bound_task_without_self(app):
    @locked_task(app=app, bind=True, key="{self.name}:{n}", autoretry_for=(ValueError,))
    def bound(self, n): ...

    assert_locks(bound, f"{bound.name}:1", 1)


def test_assert_runs_unlocked_fails_for_a_task_with_a_key(app, settle):
    @locked_task(app=app, key=lambda n: None)
    def free(n): ...

    @app.task(shared=False)
    def plain(): ...

    assert_runs_unlocked(free, 1)
    assert_runs_unlocked(plain)
    with pytest.raises(AssertionError, match="would lock 'invoice:42'"):
        assert_runs_unlocked(settle, 42)
    with pytest.raises(AssertionError, match="not a locked task"):
        lock_key(plain)
