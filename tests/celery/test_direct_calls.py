"""Calls that no message stands behind: direct, eager, mapped. In this process, on a real Redis."""

from __future__ import annotations

import datetime
import logging
import threading
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry

from syncguard import LockError, LockLost
from syncguard_celery import (
    LockContended,
    current_fence,
    current_lock,
    locked,
    locked_task,
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
    task_lock_released,
)
from syncguard_celery.calls import Call
from syncguard_celery.exiting import _publish_retry, _release_unclaimed
from syncguard_celery.publishing import _delay_ms
from syncguard_celery.retrying import ends_in_retry


@pytest.fixture
def app(syncguard_backend):
    app = Celery("direct", broker="memory://", fixups=[], set_as_current=False)
    app.conf.syncguard_backend = syncguard_backend
    yield app
    app.close()


@pytest.fixture
def settle(app):
    @locked_task(app=app, name="settle", key="invoice:{invoice_id}", contention_timeout_ms=300)
    def settle(invoice_id):
        return current_fence()

    return settle


def test_a_direct_call_is_locked(settle, syncguard_backend):
    assert settle(42) == "000000000000001"
    assert not syncguard_backend.is_locked("invoice:42")


def test_a_direct_call_waits_and_then_raises_lock_contended(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        with pytest.raises(LockContended) as raised:
            settle(42)
    assert raised.value.fence == "000000000000001"


def test_a_direct_call_gets_the_lock_when_it_is_let_go(app, syncguard_backend):
    @locked_task(app=app, name="patient", key="invoice:{invoice_id}")
    def patient(invoice_id):
        return current_fence()

    held = syncguard_backend.acquire("invoice:42", 20_000)
    threading.Timer(0.2, held.release).start()
    assert patient(42) == "000000000000002"


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


def test_a_plain_function_can_be_locked_inside_of_another_task(app, syncguard_backend):
    @locked(key="helper:{n}", backend=syncguard_backend)
    def helper(n):
        return syncguard_backend.lookup(key=f"helper:{n}").holder

    @app.task(name="plain")
    def plain():
        return helper(1)

    assert "helper@" in plain()


def test_a_nested_lock_is_let_go_before_the_outer_one(app, syncguard_backend):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        return current_fence(), syncguard_backend.is_locked("outer")

    @locked_task(app=app, name="outer", key="outer")
    def outer():
        inside = inner()
        return inside, syncguard_backend.is_locked("inner"), current_lock().lost

    assert outer() == (("000000000000001", True), False, False)


def test_re_entering_a_lost_lock_raises(app, syncguard_backend):
    @locked_task(app=app, name="again", key="again", ttl_ms=300, on_lost="signal")
    def again(depth):
        if depth:
            return None
        info = syncguard_backend.lookup(key="again")
        syncguard_backend.force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        while not current_lock().lost:
            pass
        return again(1)

    with pytest.raises(LockLost):
        again(0)


def test_losing_the_outer_lock_interrupts_the_inner_task_and_frees_both(app, syncguard_backend):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        info = syncguard_backend.lookup(key="outer")
        syncguard_backend.force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        threading.Event().wait(20)

    @locked_task(app=app, name="outer", key="outer", ttl_ms=600)
    def outer():
        inner()

    with pytest.raises(LockLost):
        outer()
    assert not syncguard_backend.is_locked("inner")


def test_a_fault_of_the_lock_service_is_raised(settle, syncguard_redis):
    syncguard_redis.kill()
    with pytest.raises(LockError) as raised:
        settle(42)
    assert raised.value.code in ("ServiceUnavailable", "NetworkTimeout")


def test_signals_tell_who_what_and_how_long(app, syncguard_backend):
    told = []

    def receiver(signal=None, **facts):
        told.append((signal.name, facts))

    signals = (task_lock_acquired, task_lock_contended, task_lock_lost, task_lock_released)
    for signal in signals:
        signal.connect(receiver)

    @locked_task(app=app, name="told", key="told", on_contention="skip")
    def task():
        return None

    try:
        task.apply(task_id="the-id")
        with syncguard_backend.acquire("told", 20_000):
            task.apply(task_id="other-id")
    finally:
        for signal in signals:
            signal.disconnect(receiver)
    names = [name for name, _ in told]
    assert names == ["task_lock_acquired", "task_lock_released", "task_lock_contended"]
    acquired, released, contended = (facts for _, facts in told)
    for facts in (acquired, released):
        assert facts["sender"].name == facts["task_name"] == "told"
        assert facts["task_id"] == "the-id"
        assert facts["key_hash"] == syncguard_backend.hash("told")
        assert facts["fence"] == "000000000000001"
        assert facts["waited_ms"] >= 0
    assert released["held_ms"] >= 0
    assert (contended["task_id"], contended["policy"]) == ("other-id", "skip")


def test_losing_is_told_by_a_signal_and_logged(app, syncguard_backend, caplog):
    lost = threading.Event()

    def receiver(**facts):
        if facts["task_name"] == "lost":
            lost.set()

    task_lock_lost.connect(receiver)

    @locked_task(app=app, name="lost", key="lost", ttl_ms=300)
    def task():
        info = syncguard_backend.lookup(key="lost")
        syncguard_backend.force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        threading.Event().wait(20)

    try:
        with caplog.at_level(logging.ERROR, logger="syncguard.celery"), pytest.raises(LockLost):
            task()
        assert lost.wait(10)
    finally:
        task_lock_lost.disconnect(receiver)
    assert any("lost its lock" in record.message for record in caplog.records)


def test_an_on_lost_that_fails_is_logged_and_no_more(app, syncguard_backend, caplog):
    called = threading.Event()

    def on_lost():
        called.set()
        raise ValueError("oops")

    @locked_task(app=app, name="lost", key="lost", ttl_ms=300, on_lost=on_lost)
    def task():
        info = syncguard_backend.lookup(key="lost")
        syncguard_backend.force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        assert called.wait(10)

    with pytest.raises(LockLost):
        task()


def test_no_key_and_no_lock_id_is_logged(settle, caplog, syncguard_backend):
    with caplog.at_level(logging.DEBUG, logger="syncguard.celery"):
        settle("secret")
    assert caplog.records
    assert "secret" not in caplog.text
    assert syncguard_backend.hash("invoice:secret") in caplog.text


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

    def test_without_a_limit(self, call):
        made = call(retries=99)
        made.task.max_retries = None
        assert ends_in_retry(made, OSError())

    def test_a_direct_call_is_not_retried(self, call):
        made = call()
        made.request.called_directly = True
        assert not ends_in_retry(made, OSError())


def test_a_lock_that_was_handed_on_for_nothing_is_released(app, syncguard_backend):
    @locked_task(app=app, name="unclaimed", key="k", at="publish")
    def unclaimed(): ...

    acquired = syncguard_backend.acquire("k", 20_000)
    unclaimed.push_request(_syncguard_handed_on=acquired.lock_id)
    _release_unclaimed(sender=unclaimed, task=unclaimed)
    assert not syncguard_backend.is_locked("k")
    _release_unclaimed(sender=unclaimed, task=unclaimed)
    _release_unclaimed(sender=app.tasks["celery.map"], task=app.tasks["celery.map"])
    unclaimed.pop_request()


def test_a_policy_that_does_not_exist_is_refused(app, syncguard_backend):
    @locked_task(app=app, name="lost", key="k", on_contention=lambda: "whatever")
    def task(): ...

    with syncguard_backend.acquire("k", 20_000), pytest.raises(LockError, match="must choose"):
        task()


def test_a_policy_can_be_chosen_for_a_direct_call(app, syncguard_backend):
    @locked_task(app=app, name="lost", key="k", on_contention=lambda: "skip", skip_result="no")
    def task(): ...

    with syncguard_backend.acquire("k", 20_000):
        assert task() == "no"


def test_an_interrupt_between_acquiring_and_running_leaves_no_lock(
    app, syncguard_backend, monkeypatch
):
    @locked_task(app=app, name="struck", key="k")
    def task(): ...

    def strike(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("syncguard_celery.entering.remember", strike)
    with pytest.raises(KeyboardInterrupt):
        task()
    assert not syncguard_backend.is_locked("k")


def test_an_interrupt_while_letting_go_leaves_no_lock(app, syncguard_backend, monkeypatch):
    @locked_task(app=app, name="struck", key="k")
    def task(): ...

    def strike(*_args, **_options):
        raise SystemExit

    monkeypatch.setattr("syncguard_celery.exiting._prepare", strike)
    with pytest.raises(SystemExit):
        task()
    assert not syncguard_backend.is_locked("k")


def test_the_lock_that_nobody_published_a_retry_for(app, syncguard_backend, monkeypatch):
    published = []

    @locked_task(app=app, name="broken", key="k", at="publish", bind=True)
    def broken(self): ...

    holding = SimpleNamespace(
        retry=(lambda: published.append(1) or 1 / 0, 0.0),
        backend=syncguard_backend,
        call=Call("broken", broken, Context(id="x"), app),
    )
    acquired = syncguard_backend.acquire("k", 20_000)
    holding.call.request.__dict__["_syncguard_handed_on"] = acquired.lock_id
    with pytest.raises(Reject):
        _publish_retry(holding)
    assert published
    assert not syncguard_backend.is_locked("k")


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

    class Slippery:
        """A backend whose first attempt is refused, as if somebody had held the lock just then."""

        refusals = 1

        def __getattr__(self, name):
            return getattr(syncguard_backend, name)

        def acquire(self, *args, **options):
            if self.refusals:
                self.refusals -= 1
                with syncguard_backend.acquire(*args, **options):
                    return syncguard_backend.acquire(*args, **options)
            return syncguard_backend.acquire(*args, **options)

    @locked_task(app=app, name="slip", key="k", backend=Slippery(), on_contention="fail")
    def task():
        return current_fence()

    assert task() == "000000000000002"


def test_djangos_settings_give_the_backend(app, syncguard_redis, settings):
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


def test_a_late_release_leaves_the_successors_lock_alone(app, syncguard_backend):
    @locked_task(app=app, name="late", key="k", ttl_ms=20_000, on_lost="signal")
    def late():
        info = syncguard_backend.lookup(key="k")
        syncguard_backend.force_release(
            info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
        )
        assert syncguard_backend.acquire("k", 20_000).ok
        return "done"

    with pytest.raises(LockLost):
        late()
    assert syncguard_backend.lookup(key="k").fence == "000000000000002"


def test_the_key_is_computed_once(app):
    computed = []

    def key(box):
        computed.append(box)
        return f"box:{len(box)}"

    @locked_task(app=app, name="once", key=key)
    def grow(box):
        box.append("another")  # at the end the key would be another one

    grow([])
    assert len(computed) == 1
