"""Every end of a task releases the lock, also when an interrupt comes during the release."""

from __future__ import annotations

import gc
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from celery.app.task import Context
from celery.exceptions import Reject, SoftTimeLimitExceeded
from kombu.exceptions import OperationalError
from wrapped_backends import release_as_administrator

from syncguard import LockLost
from syncguard._heartbeat import heartbeat
from syncguard_celery import (
    current_lock,
    locked_task,
)
from syncguard_celery.publish_lock.cleanup import _release_unclaimed
from syncguard_celery.release import _publish_retry
from syncguard_celery.running_calls import innermost
from syncguard_celery.task_call import Call


def test_a_lock_handed_over_to_a_retry_that_was_not_published_is_released(app, syncguard_backend):
    @locked_task(app=app, name="unclaimed", key="k", at="publish")
    def unclaimed(): ...

    acquired = syncguard_backend.acquire("k", 20_000)
    unclaimed.push_request(_syncguard_handed_over=acquired.lock_id)
    _release_unclaimed(sender=unclaimed, task=unclaimed)
    assert not syncguard_backend.is_locked("k")
    _release_unclaimed(sender=unclaimed, task=unclaimed)
    _release_unclaimed(sender=app.tasks["celery.map"], task=app.tasks["celery.map"])
    unclaimed.pop_request()


def test_an_interrupt_between_acquiring_and_running_leaves_no_lock(
    app, syncguard_backend, monkeypatch
):
    @locked_task(app=app, name="interrupted", key="k")
    def task(): ...

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("syncguard_celery.acquire.record_fence", interrupt)
    with pytest.raises(KeyboardInterrupt):
        task()
    assert not syncguard_backend.is_locked("k")


def test_an_interrupt_during_the_release_leaves_no_lock(app, syncguard_backend, monkeypatch):
    @locked_task(app=app, name="interrupted", key="k")
    def task(): ...

    def interrupt(*_args, **_options):
        raise SystemExit

    monkeypatch.setattr("syncguard_celery.release._prepare", interrupt)
    with pytest.raises(SystemExit):
        task()
    assert not syncguard_backend.is_locked("k")


def test_system_exit_releases_the_lock_before_its_minimum(app, syncguard_backend):
    @locked_task(app=app, name="ending", key="k", min_hold_ms=60_000)
    def ending():
        raise SystemExit

    with pytest.raises(SystemExit):
        ending()
    assert not syncguard_backend.is_locked("k")


def test_min_hold_ms_counts_from_the_acquisition(app, syncguard_backend):
    @locked_task(app=app, name="busy", key="k", ttl_ms=20_000, min_hold_ms=60_000)
    def busy():
        began.append(current_lock().expires_at_ms - 20_000)
        innermost().since -= 40  # as if it had run for 40 s

    began = []
    busy()
    # From the end of the task it would be 60 s. A busy machine may take some of the time.
    assert syncguard_backend.lookup(key="k").expires_at_ms < began[0] + 20_000 + 15_000


def test_a_broken_lock_service_does_not_hide_that_publishing_failed(
    app, syncguard_redis, monkeypatch
):
    @locked_task(app=app, name="unpublished", key="k", at="publish")
    def unpublished(): ...

    def refuse(*_args, **_options):
        syncguard_redis.kill()
        raise OperationalError("no broker")

    monkeypatch.setattr(app, "send_task", refuse)
    with pytest.raises(OperationalError):
        unpublished.delay()


def test_a_lock_is_released_if_publishing_its_retry_fails(app, syncguard_backend, monkeypatch):
    published = []

    @locked_task(app=app, name="broken", key="k", at="publish", bind=True)
    def broken(self): ...

    holding = SimpleNamespace(
        retry=(lambda: published.append(1) or 1 / 0, 0.0),
        backend=syncguard_backend,
        call=Call("broken", broken, Context(id="x"), app),
    )
    acquired = syncguard_backend.acquire("k", 20_000)
    holding.call.request.__dict__["_syncguard_handed_over"] = acquired.lock_id
    with pytest.raises(Reject):
        _publish_retry(holding)
    assert published
    assert not syncguard_backend.is_locked("k")


def test_a_late_release_does_not_release_the_next_holders_lock(app, syncguard_backend):
    @locked_task(app=app, name="late", key="k", ttl_ms=20_000, on_lost="signal")
    def late():
        release_as_administrator(syncguard_backend, "k")
        assert syncguard_backend.acquire("k", 20_000).ok
        return "done"

    with pytest.raises(LockLost):
        late()
    assert syncguard_backend.lookup(key="k").fence == "000000000000002"


@pytest.mark.parametrize("how", ["throw=False", "requeue"])
def test_a_task_that_will_run_again_releases_its_lock_before_its_minimum(
    app, deliver, syncguard_backend, how
):
    @locked_task(app=app, name="again", key="k", bind=True, min_hold_ms=60_000)
    def again(self):
        if how == "requeue":
            raise Reject("not now", requeue=True)
        self.retry(countdown=1, throw=False)

    again.delay()
    deliver()
    assert not syncguard_backend.is_locked("k")


def test_an_interrupt_at_any_line_leaves_no_lock_no_heartbeat_and_no_current_lock(
    app, syncguard_backend
):
    """A soft time limit can interrupt at any line."""
    lines_left = 0

    def trace(frame, event, _argument):
        nonlocal lines_left
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if "/syncguard_celery/" not in path.replace("\\", "/") or name in UNCATCHABLE:
            return None
        if event == "line":
            lines_left -= 1
            if lines_left == 0:
                places.append(f"{path}:{frame.f_lineno}")
                raise SoftTimeLimitExceeded
        return trace

    lost = []

    @locked_task(
        app=app, name="interrupted", key="k", ttl_ms=20_000, on_lost=lambda: lost.append(1)
    )
    def task():
        return "done"

    def interrupt_everywhere():
        nonlocal lines_left
        for number in itertools.count(1):
            lines_left = number
            sys.settrace(trace)
            try:
                task()
            except SoftTimeLimitExceeded:
                pass
            finally:
                sys.settrace(None)
            place = places[-1:]
            assert current_lock() is None, f"current_lock() after an interrupt at {place}"
            assert not syncguard_backend.is_locked("k"), (
                f"still locked after an interrupt at {place}"
            )
            assert not watched(), f"still extended after an interrupt at {place}"
            if lines_left > 0:
                return

    task()
    places = []
    with ThreadPoolExecutor() as pool:  # tracing is per thread: coverage continues in this one
        pool.submit(interrupt_everywhere).result(timeout=280)
    assert len(places) > 50
    assert not lost


UNCATCHABLE = {"attempt", "release_after_interrupt", "release_quietly", "arm", "disarm"}
"""Here no code of ours can clean up: between the server's answer and the assignment of the lock id,
and in the cleanup itself. Such a lock is not extended, and expires after its TTL. In ``arm`` and
``disarm`` a ``threading.Lock`` is held, and a tracer interrupts where a signal does not."""


def watched():
    thread = heartbeat._heartbeat.thread
    registered = [watch.beat for ref in list(thread.registrations) if (watch := ref())]
    beats = [beat for _, _, beat in list(thread._schedule._heap)]
    return [beat for beat in registered + beats if not beat.over]


@pytest.fixture
def objects_in_cycles():
    """Types of SyncGuard's objects made since then that only the garbage collector frees."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # ignore objects that were made before this test
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def ours():
        gc.collect()
        return [kind for each in gc.garbage if "syncguard" in (kind := type(each)).__module__]

    try:
        yield ours
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def test_a_locked_task_leaves_no_reference_cycles(settle, deliver, objects_in_cycles):
    settle.delay(1)
    assert deliver().state == "SUCCESS"
    settle(2)
    assert objects_in_cycles() == []


@pytest.mark.usefixtures("long_attempts")
@pytest.mark.parametrize(
    ("policy", "ends"), [("skip", "SUCCESS"), ("fail", "FAILURE"), ("wait", "FAILURE")]
)
def test_contention_leaves_no_reference_cycles(
    app, deliver, syncguard_backend, objects_in_cycles, policy, ends
):
    @locked_task(app=app, name="meet", key="k", on_contention=policy, contention_timeout_ms=1)
    def meet(): ...

    meet.delay()
    with syncguard_backend.acquire("k"):
        assert deliver().state == ends
    assert objects_in_cycles() == []
