"""Calls that no message stands behind: direct, eager, mapped. In this process, on a real Redis."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import after_task_publish
from kombu.exceptions import OperationalError

from syncguard import LockError, LockLost
from syncguard.redis import RedisBackend
from syncguard_celery import (
    LockContended,
    current_fence,
    current_lock,
    inherited_fence,
    locked,
    locked_task,
    task_lock_acquired,
    task_lock_contended,
    task_lock_lost,
    task_lock_released,
)
from syncguard_celery.calls import Call
from syncguard_celery.contention import republish
from syncguard_celery.exiting import _publish_retry, _release_unclaimed
from syncguard_celery.luggage import HEADER, key_digest
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


def take_away(backend, key):
    """As an administrator would: the heartbeat finds the lock gone."""
    info = backend.lookup(key=key)
    assert backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash).ok


class Behind:
    """A backend that is another one in everything that a test does not change."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)


class Slippery(Behind):
    """Refuses some attempts, as if somebody had held the lock just then and let go at once."""

    def __init__(self, backend, refusals):
        super().__init__(backend)
        self.refusals = refusals

    def acquire(self, *args, **options):
        if self.refusals:
            self.refusals -= 1
            with self.backend.acquire(*args, **options):
                return self.backend.acquire(*args, **options)
        return self.backend.acquire(*args, **options)


def test_a_direct_call_is_locked(settle, syncguard_backend):
    assert settle(42) == "000000000000001"
    assert not syncguard_backend.is_locked("invoice:42")


def test_a_direct_call_waits_and_then_raises_lock_contended(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        with pytest.raises(LockContended) as raised:
            settle(42)
    assert raised.value.fence == "000000000000001"


def test_a_direct_call_waits_no_longer_than_its_contention_timeout(settle, syncguard_backend):
    with syncguard_backend.acquire("invoice:42", 20_000):
        started = time.monotonic()
        with pytest.raises(LockContended):
            settle(42)
    assert 0.3 <= time.monotonic() - started < 3  # without one it is five seconds


def test_the_time_decides_how_long_to_wait_and_not_the_number_of_attempts(app, syncguard_backend):
    @locked_task(app=app, name="patient", key="k", contention_timeout_ms=20_000)
    def patient():
        return current_fence()

    held = syncguard_backend.acquire("k", 20_000)
    threading.Timer(2.2, held.release).start()  # the fifth attempt, at two a second
    assert patient() == "000000000000002"


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_who_skips_or_fails_does_not_wait(app, syncguard_backend, policy):
    @locked_task(app=app, name="hasty", key="k", on_contention=policy, skip_result="skipped")
    def hasty():
        return "ran"

    held = syncguard_backend.acquire("k", 20_000)

    def let_go(**_facts):
        held.release()

    task_lock_contended.connect(let_go)  # whoever waits would get it now
    try:
        if policy == "skip":
            assert hasty() == "skipped"
        else:
            with pytest.raises(LockContended):
                hasty()
    finally:
        task_lock_contended.disconnect(let_go)


def test_a_direct_call_gets_the_lock_when_it_is_let_go(app, syncguard_backend):
    @locked_task(app=app, name="patient", key="invoice:{invoice_id}")
    def patient(invoice_id):
        return current_fence()

    held = syncguard_backend.acquire("invoice:42", 20_000)
    threading.Timer(0.2, held.release).start()
    assert patient(42) == "000000000000002"


class TestEitherWay:
    """A lock is the same whether it was there at once or had to be waited for."""

    @pytest.fixture(params=["at once", "after waiting"])
    def call(self, request, syncguard_backend):
        def call(task):
            if request.param == "after waiting":
                held = syncguard_backend.acquire("k", 20_000)
                threading.Timer(0.2, held.release).start()
            return task()

        return call

    def test_its_holder_has_a_label(self, app, syncguard_backend, call):
        @locked_task(app=app, name="look", key="k")
        def look():
            return syncguard_backend.lookup(key="k").holder

        assert call(look).startswith("look@")

    def test_losing_it_interrupts(self, app, syncguard_backend, call):
        @locked_task(app=app, name="lose", key="k", ttl_ms=600)
        def lose():
            take_away(syncguard_backend, "k")
            threading.Event().wait(10)
            survived.append("to the end")

        survived = []
        with pytest.raises(LockLost):
            call(lose)
        assert not survived

    def test_it_ends_with_max_hold(self, app, call):
        @locked_task(app=app, name="hang", key="k", ttl_ms=300, max_hold_ms=400)
        def hang():
            threading.Event().wait(10)
            survived.append("to the end")

        survived = []
        with pytest.raises(LockLost):
            call(hang)
        assert not survived

    def test_without_auto_extend_it_ends_with_its_ttl(
        self, app, syncguard_backend, eventually, call
    ):
        @locked_task(app=app, name="brief", key="k", ttl_ms=300, auto_extend=False)
        def brief():
            eventually(lambda: not syncguard_backend.is_locked("k"), 10)

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
    depths = []

    @locked_task(app=app, name="again", key="again", ttl_ms=300, on_lost="signal")
    def again(depth):
        depths.append(depth)
        if depth:
            return None
        take_away(syncguard_backend, "again")
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


def test_a_task_that_runs_itself_inherits_from_itself(app):
    @locked_task(app=app, name="descend", key="level:{level}")
    def descend(level):
        if level < 2:
            return descend.apply((level + 1,)).result
        return [inherited_fence(f"level:{above}") for above in range(3)]

    assert descend.apply((0,)).result == ["000000000000001", "000000000000001", None]


def test_a_task_that_publishes_another_of_its_kind_is_no_retry(app, syncguard_backend):
    @locked_task(app=app, name="spawn", key="spawned:{n}", at="publish")
    def spawn(n):
        if n == 1:
            spawn.apply_async((2,), task_id="the-second")

    spawn.apply((1,), task_id="the-first").get()
    assert "spawn[the-second]@" in syncguard_backend.lookup(key="spawned:2").holder


def test_losing_the_outer_lock_interrupts_the_inner_task_and_frees_both(app, syncguard_backend):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        take_away(syncguard_backend, "outer")
        threading.Event().wait(20)

    @locked_task(app=app, name="outer", key="outer", ttl_ms=600)
    def outer():
        inner()

    with pytest.raises(LockLost):
        outer()
    assert not syncguard_backend.is_locked("inner")


@pytest.fixture
def lost():
    """Set when somebody's lock was lost, and the interrupt is under way."""
    event = threading.Event()

    def receiver(**_facts):
        event.set()

    task_lock_lost.connect(receiver)
    yield event
    task_lock_lost.disconnect(receiver)


@pytest.mark.parametrize("on_lost", ["signal", lambda: None], ids=["signal", "callable"])
def test_who_wants_no_interrupt_can_still_take_another_lock(app, syncguard_backend, lost, on_lost):
    @locked_task(app=app, name="inner", key="inner")
    def inner():
        ran.append("inner")

    @locked_task(app=app, name="outer", key="outer", ttl_ms=600, on_lost=on_lost)
    def outer():
        take_away(syncguard_backend, "outer")
        assert lost.wait(10)
        inner()
        ran.append("outer")

    ran = []
    with pytest.raises(LockLost):
        outer()
    assert ran == ["inner", "outer"]


@pytest.mark.parametrize("moment", ["acquire", "release"])
def test_losing_the_outer_lock_does_not_strike_while_the_inner_one_changes_hands(
    app, syncguard_backend, lost, moment
):
    class Fateful(Behind):
        """The outer lock is lost when the server has answered, and nobody knows the answer yet."""

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
            take_away(syncguard_backend, "outer")
            assert lost.wait(10)
            undisturbed.append(moment)

    @locked(key="inner", backend=Fateful(syncguard_backend), ttl_ms=20_000)
    def inner(): ...

    @locked_task(app=app, name="outer", key="outer", ttl_ms=600)
    def outer():
        inner()
        survived.append("to the end")

    undisturbed, survived = [], []
    with pytest.raises(LockLost):
        outer()
    assert undisturbed == [moment]
    assert not survived
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
    assert contended["key_hash"] == syncguard_backend.hash("told")
    assert contended["fence"] == "000000000000002"


def test_losing_is_told_by_a_signal_and_logged(app, syncguard_backend, caplog):
    lost = threading.Event()
    told = []

    def receiver(signal=None, **facts):
        told.append((signal.name, facts["key_hash"], facts["fence"]))
        lost.set()

    task_lock_lost.connect(receiver)
    task_lock_released.connect(receiver)

    @locked_task(app=app, name="lost", key="lost", ttl_ms=300)
    def task():
        take_away(syncguard_backend, "lost")
        threading.Event().wait(20)

    try:
        with caplog.at_level(logging.ERROR, logger="syncguard.celery"), pytest.raises(LockLost):
            task()
        assert lost.wait(10)
    finally:
        task_lock_lost.disconnect(receiver)
        task_lock_released.disconnect(receiver)
    # Of what was lost nobody can let go.
    assert told == [("task_lock_lost", syncguard_backend.hash("lost"), "000000000000001")]
    assert any("lost its lock" in record.message for record in caplog.records)


def test_an_on_lost_that_fails_is_logged_and_no_more(app, syncguard_backend, caplog, eventually):
    called = threading.Event()

    def on_lost():
        called.set()
        raise ValueError("oops")

    @locked_task(app=app, name="lost", key="lost", ttl_ms=300, on_lost=on_lost)
    def task():
        take_away(syncguard_backend, "lost")
        assert called.wait(10)

    with pytest.raises(LockLost):
        task()
    failure = ("syncguard.celery", logging.ERROR, "the on_lost callback failed")
    eventually(lambda: failure in caplog.record_tuples)


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
    """A task that met contention is published again: when, and what the message says."""

    @pytest.fixture
    def come_back(self, app):
        @app.task(name="contending", shared=False)
        def contending(): ...

        def come_back(attempts=0, left=None):
            luggage = {"attempts": attempts, "since": 1_000} if attempts else {}
            context = Context(
                id="x", args=(), kwargs={}, called_directly=False, **{HEADER: luggage}
            )
            call = Call(contending.name, contending, context, app)
            return republish(call, LockContended(), left).when

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


def test_what_ends_the_process_ends_the_minimum_hold_too(app, syncguard_backend):
    @locked_task(app=app, name="ending", key="k", min_hold_ms=60_000)
    def ending():
        raise SystemExit

    with pytest.raises(SystemExit):
        ending()
    assert not syncguard_backend.is_locked("k")


def test_the_minimum_hold_counts_from_the_beginning(app, syncguard_backend):
    @locked_task(app=app, name="busy", key="k", ttl_ms=20_000, min_hold_ms=60_000)
    def busy():
        began.append(current_lock().expires_at_ms - 20_000)
        threading.Event().wait(1)

    began = []
    busy()
    assert syncguard_backend.lookup(key="k").expires_at_ms < began[0] + 60_000 + 500


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


def test_a_retry_that_somebody_else_overtakes_meets_contention(app, syncguard_backend, monkeypatch):
    class Overtaken(Behind):
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

    monkeypatch.setattr("syncguard_celery.entering._PREDECESSOR_WAIT_MS", 200)
    predecessor = syncguard_backend.acquire("k", 20_000)
    came_with = {"after": {key_digest("k"): predecessor.fence}}
    assert task.apply(headers={HEADER: came_with}).get() == "overtaken"


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

    slippery = Slippery(syncguard_backend, refusals=1)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task():
        return current_fence()

    assert task() == "000000000000002"


def test_a_holder_that_always_slips_away_is_contention_with_nobody(app, syncguard_backend):
    slippery = Slippery(syncguard_backend, refusals=99)

    @locked_task(app=app, name="slip", key="k", backend=slippery, on_contention="fail")
    def task(): ...

    with pytest.raises(LockContended) as raised:
        task()
    assert raised.value.key_hash == syncguard_backend.hash("k")
    assert (raised.value.fence, raised.value.remaining_ms) == (None, None)


def test_a_holder_that_slips_away_from_a_publisher_is_no_twin(app, syncguard_backend):
    slippery = Slippery(syncguard_backend, refusals=2)

    @locked_task(app=app, name="slip", key="k", backend=slippery, at="publish")
    def task(): ...

    result = task.delay()
    assert f"slip[{result.id}]@" in syncguard_backend.lookup(key="k").holder


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
        take_away(syncguard_backend, "k")
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
