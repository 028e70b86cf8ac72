"""What a redelivered message does when it finds a lock with its own task id."""

from __future__ import annotations

import logging
import time
import uuid
from types import SimpleNamespace

import pytest
from celery import states
from celery.app.task import Context
from kombu.exceptions import OperationalError
from wrapped_backends import WrappedBackend, release_as_administrator

from syncguard import LockError
from syncguard_celery import LockContended, current_fence, locked, locked_task, redelivery
from syncguard_celery.holder_label import holder_label, is_redelivered, task_id_in
from syncguard_celery.message_header import HEADER, key_digest
from syncguard_celery.redelivery import MAX_CLOCK_SKEW_MS, Republished, is_copy, is_own_delivery
from syncguard_celery.task_call import Call

TTL_MS = 60_000
DIGEST = key_digest("k")


@pytest.fixture
def results(app):
    """The result store of the app, in memory."""
    app.conf.result_backend = "cache+memory://"
    return app.backend


@pytest.fixture
def bodies():
    return []


@pytest.fixture
def task(app, bodies):
    @locked_task(
        app=app,
        name="late",
        key="k",
        ttl_ms=TTL_MS,
        on_contention="skip",
        skip_result="skipped",
        acks_late=True,
    )
    def late():
        bodies.append(current_fence())
        return "done"

    return late


@pytest.fixture
def clock(monkeypatch):
    """Moves the clock that copies use."""
    clock = SimpleNamespace(ahead_ms=0)
    monkeypatch.setattr(redelivery, "_now_ms", lambda: time.time() * 1000 + clock.ahead_ms)
    return clock


@pytest.fixture
def stopped_clock(monkeypatch):
    """The clock that copies use shows what a test sets."""
    clock = SimpleNamespace(now_ms=0)
    monkeypatch.setattr(redelivery, "_now_ms", lambda: clock.now_ms)
    return clock


def test_the_clock_that_copies_use_counts_milliseconds():
    before_ms = time.time() * 1000
    assert before_ms <= redelivery._now_ms() <= time.time() * 1000


@pytest.fixture
def first(task, syncguard_backend):
    """The published message, and a lock as its first delivery would hold it."""
    result = task.delay()
    label = holder_label("late", result.id)
    held = syncguard_backend.acquire("k", TTL_MS, holder=label)
    return SimpleNamespace(id=result.id, lock_id=held.lock_id, label=label, extend=held.extend)


@pytest.fixture
def delays(monkeypatch):
    """The delay of each copy that was published again, in milliseconds."""
    publish_again, delays = redelivery.publish_again, []

    def record_delay(call, delay_ms, **options):
        delays.append(delay_ms)
        return publish_again(call, delay_ms, **options)

    monkeypatch.setattr(redelivery, "publish_again", record_delay)
    return delays


@pytest.fixture
def messages(caplog):
    """The level and the text of each line in the log."""
    caplog.set_level(logging.DEBUG, logger="syncguard.celery")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def look(deliver, first_time=False):
    """Deliver a copy that is published again. Returns the header with which it came."""
    traced = deliver(redelivered=first_time)
    assert traced.state == "IGNORED", traced.result
    assert isinstance(traced.raised, Republished)
    return traced.came_with


def is_dropped(deliver, first_time=False):
    """Deliver a copy. Whether it neither runs nor is published again."""
    traced = deliver(redelivered=first_time)
    return traced.state == "IGNORED" and not isinstance(traced.raised, Republished)


class TestTheFirstDeliveryHoldsItsLock:
    @pytest.mark.usefixtures("first")
    def test_the_copy_is_published_again_and_does_not_run(self, deliver, bodies):
        look(deliver, first_time=True)
        assert list(look(deliver)["earlier"]) == [DIGEST]
        assert not bodies

    def test_the_copy_stores_no_state(self, results, deliver, first):
        look(deliver, first_time=True)
        assert results.get_state(first.id) == states.PENDING

    def test_the_copy_looks_again_after_the_next_extension_was_due(
        self, deliver, first, clock, delays
    ):
        look(deliver, first_time=True)
        clock.ahead_ms = TTL_MS / 2
        look(deliver)
        first.extend(TTL_MS)
        clock.ahead_ms = 0
        look(deliver)
        due, at_expiry, due_again = delays
        assert TTL_MS / 3 < due <= TTL_MS / 2
        assert TTL_MS / 2 - 10_000 < at_expiry < TTL_MS / 2 + 1_000
        assert TTL_MS / 3 < due_again <= TTL_MS / 2

    @pytest.mark.usefixtures("first")
    def test_the_copy_looks_again_after_the_expiry_if_no_extension_came(
        self, deliver, syncguard_backend, stopped_clock, delays
    ):
        expires_ms = syncguard_backend.lookup(key="k").expires_at_ms
        stopped_clock.now_ms = expires_ms - TTL_MS / 2 - 1_000
        look(deliver, first_time=True)
        stopped_clock.now_ms = expires_ms - TTL_MS / 2
        look(deliver)
        assert delays == [1_000, TTL_MS / 2 + 200]

    @pytest.mark.usefixtures("first")
    def test_the_first_look_of_a_copy_is_logged_and_later_ones_for_debugging_only(
        self, app, deliver, messages
    ):
        app.conf.broker_transport_options = {"visibility_timeout": 4}
        look(deliver, first_time=True)
        look(deliver)
        (level, text), (later_level, _) = (
            message for message in messages() if "delivered again" in message[1]
        )
        assert (level, later_level) == ("INFO", "DEBUG")
        assert text.endswith("holds its lock; looking again in 2.0 s")

    @pytest.mark.usefixtures("first")
    def test_the_copy_is_published_again_within_half_of_the_visibility_timeout(
        self, app, deliver, delays
    ):
        app.conf.broker_transport_options = {"visibility_timeout": 4}
        look(deliver, first_time=True)
        assert delays == [2_000]

    def test_the_first_delivery_does_not_run_while_its_copy_runs(
        self, deliver, task, syncguard_backend, bodies
    ):
        """The first delivery waited in a worker for so long that its copy began first."""
        result = task.delay()
        label = holder_label("late", result.id, redelivered=True)
        with syncguard_backend.acquire("k", TTL_MS, holder=label):
            look(deliver)
        assert not bodies

    @pytest.mark.usefixtures("first")
    def test_the_copy_is_requeued_if_it_cannot_be_published_again(self, deliver, monkeypatch):
        def fail(*_args, **_options):
            raise OperationalError

        monkeypatch.setattr(redelivery, "publish_again", fail)
        traced = deliver(redelivered=True)
        assert traced.state == "REJECTED"
        assert traced.raised.requeue


class TestTheLockOfTheFirstDeliveryIsGone:
    @pytest.fixture
    def seen(self, deliver, first):
        """The copy has looked up the lock of the first delivery once."""
        look(deliver, first_time=True)
        return first

    def test_the_copy_is_dropped_if_the_lock_was_released_before_it_expired(
        self, deliver, seen, syncguard_backend, bodies
    ):
        syncguard_backend.release(seen.lock_id)
        assert is_dropped(deliver)
        assert not bodies

    def test_the_copy_runs_if_the_lock_expired(
        self, deliver, seen, syncguard_backend, clock, bodies
    ):
        syncguard_backend.release(seen.lock_id)
        clock.ahead_ms = TTL_MS
        assert deliver().state == "SUCCESS"
        assert len(bodies) == 1

    def test_the_copy_runs_if_the_lock_may_have_expired_by_another_clock(
        self, deliver, seen, syncguard_backend, clock, bodies
    ):
        syncguard_backend.release(seen.lock_id)
        clock.ahead_ms = TTL_MS - 1_000
        assert deliver().state == "SUCCESS"
        assert len(bodies) == 1

    @pytest.mark.parametrize("early_ms", [0, 1])
    def test_the_copy_runs_as_soon_as_another_clock_may_say_that_the_lock_expired(
        self, deliver, seen, syncguard_backend, stopped_clock, messages, early_ms
    ):
        expires_ms = syncguard_backend.lookup(key="k").expires_at_ms
        syncguard_backend.release(seen.lock_id)
        stopped_clock.now_ms = expires_ms - MAX_CLOCK_SKEW_MS - early_ms
        if early_ms:
            assert is_dropped(deliver)
            expected = "was delivered again but has already ended; dropping the copy"
        else:
            assert deliver().state == "SUCCESS"
            expected = "runs again: its earlier delivery did not finish"
        assert [text for level, text in messages() if level == "INFO" and expected in text]

    def test_the_copy_is_dropped_if_a_result_is_stored(self, results, deliver, seen, bodies):
        results.mark_as_done(seen.id, "done")
        assert is_dropped(deliver)
        assert not bodies

    def test_the_copy_is_dropped_if_a_failure_is_stored_and_the_lock_was_released(
        self, results, deliver, seen, syncguard_backend, bodies
    ):
        syncguard_backend.release(seen.lock_id)
        results.mark_as_failure(seen.id, ValueError())
        assert is_dropped(deliver)
        assert not bodies

    def test_the_copy_runs_if_a_failure_is_stored_and_the_lock_expired(
        self, results, deliver, seen, syncguard_backend, clock, bodies
    ):
        """Celery stores a failure for a worker that was killed."""
        syncguard_backend.release(seen.lock_id)
        results.mark_as_failure(seen.id, ValueError())
        clock.ahead_ms = TTL_MS
        assert deliver().state == "SUCCESS"
        assert len(bodies) == 1

    def test_the_copy_is_dropped_if_the_task_retried_itself(
        self, results, deliver, seen, syncguard_backend, bodies
    ):
        syncguard_backend.release(seen.lock_id)
        results.mark_as_retry(seen.id, ValueError())
        assert is_dropped(deliver)
        assert not bodies

    @pytest.mark.parametrize("stale", [None, LockContended()], ids=["pending", "contended"])
    def test_the_copy_runs_later_if_the_lock_was_released_and_no_end_is_stored(
        self, results, deliver, seen, syncguard_backend, stopped_clock, bodies, stale
    ):
        """As after a shutdown: the task was interrupted and released its lock."""
        if stale is not None:
            results.mark_as_retry(seen.id, stale)
        released_ms = syncguard_backend.lookup(key="k").expires_at_ms - TTL_MS / 2
        syncguard_backend.release(seen.lock_id)
        stopped_clock.now_ms = released_ms
        look(deliver)
        look(deliver)
        stopped_clock.now_ms = released_ms + 6_000
        assert deliver().state == "SUCCESS"
        assert len(bodies) == 1

    @pytest.mark.usefixtures("results")
    def test_the_copy_waits_5_seconds_for_the_end_to_be_stored(
        self, deliver, seen, syncguard_backend, stopped_clock
    ):
        released_ms = syncguard_backend.lookup(key="k").expires_at_ms - TTL_MS / 2
        syncguard_backend.release(seen.lock_id)
        for waited_ms in (0, 4_999):
            stopped_clock.now_ms = released_ms + waited_ms
            look(deliver)
        stopped_clock.now_ms = released_ms + 5_000
        assert deliver().state == "SUCCESS"

    @pytest.mark.usefixtures("seen")
    def test_the_copy_meets_contention_if_another_holder_has_the_lock(
        self, deliver, syncguard_backend, clock
    ):
        release_as_administrator(syncguard_backend, "k")
        with syncguard_backend.acquire("k", TTL_MS, holder="somebody else"):
            clock.ahead_ms = TTL_MS
            traced = deliver()
        assert (traced.state, traced.result) == ("SUCCESS", "skipped")

    def test_the_copy_runs_if_the_released_lock_may_be_of_an_unanswered_attempt(
        self, app, deliver, seen, syncguard_backend, bodies
    ):
        """The lock may have been of this task's own attempt, whose answer was lost."""
        app.conf.syncguard_backend = Silent(syncguard_backend)
        look_in_vain(deliver)
        app.conf.syncguard_backend = syncguard_backend
        syncguard_backend.release(seen.lock_id)
        assert deliver().state == "SUCCESS"
        assert len(bodies) == 1

    @pytest.mark.parametrize("is_extended", [False, True])
    def test_the_lock_may_be_of_an_unanswered_attempt_until_somebody_extends_it(
        self, app, deliver, seen, syncguard_backend, is_extended
    ):
        app.conf.syncguard_backend = Silent(syncguard_backend)
        look_in_vain(deliver)
        app.conf.syncguard_backend = syncguard_backend
        if is_extended:
            assert seen.extend(2 * TTL_MS).ok
        assert "unavailable" in look(deliver)
        assert ("unavailable" in look(deliver)) is not is_extended


class Silent(WrappedBackend):
    """Does not answer."""

    def lookup(self, **_options):
        raise LockError("NetworkTimeout")


def look_in_vain(deliver):
    """Deliver a copy that cannot look up the lock, and is published again."""
    assert deliver().state == "IGNORED"


def test_a_copy_delivered_after_the_end_of_the_task_is_dropped(results, task, deliver, bodies):
    result = task.delay()
    results.mark_as_done(result.id, "done")
    assert is_dropped(deliver, first_time=True)
    assert not bodies


def test_a_stored_result_is_ignored_for_an_id_chosen_by_the_user(results, task, deliver, bodies):
    task.apply_async(task_id="nightly")
    results.mark_as_done("nightly", "yesterday's")
    assert deliver(redelivered=True).state == "SUCCESS"
    assert len(bodies) == 1


def test_a_copy_runs_if_the_result_store_cannot_be_read(
    app, results, task, deliver, bodies, monkeypatch
):
    def fail(*_args, **_options):
        raise ConnectionError

    task.delay()
    monkeypatch.setattr(results, "get_task_meta", fail)
    assert deliver(redelivered=True).state == "SUCCESS"


def test_results_that_only_the_caller_can_read_are_ignored(
    app, task, deliver, syncguard_backend, bodies
):
    app.conf.result_backend = "rpc://"
    result = task.apply_async(ignore_result=False)
    label = holder_label("late", result.id)
    held = syncguard_backend.acquire("k", TTL_MS, holder=label)
    look(deliver, first_time=True)
    held.release()
    assert is_dropped(deliver)
    assert not bodies


def test_an_outer_lock_is_not_kept_for_its_minimum_when_a_copy_is_published_again(
    app, deliver, syncguard_backend
):
    @app.task(name="double", shared=False)
    @locked(key="outer", min_hold_ms=TTL_MS)
    @locked(key="k")
    def double(): ...

    result = double.delay()
    with syncguard_backend.acquire("k", TTL_MS, holder=holder_label("double", result.id)):
        look(deliver, first_time=True)
    assert not syncguard_backend.is_locked("outer")


def test_a_stored_result_is_ignored_for_a_task_that_ignores_results(app, results, deliver, bodies):
    @locked_task(app=app, name="ignoring", key="k", ignore_result=True)
    def ignoring():
        bodies.append(1)

    result = ignoring.delay()
    results.mark_as_done(result.id, "of somebody else")
    assert deliver(redelivered=True).state == "SUCCESS"
    assert bodies


@pytest.mark.parametrize("ignored_by", ["the task", "the call"])
def test_a_stored_result_is_ignored_if_the_task_or_the_call_ignores_it(
    app, results, deliver, bodies, ignored_by
):
    @locked_task(app=app, name="either", key="k", ignore_result=ignored_by == "the task")
    def either():
        bodies.append(1)

    result = either.apply_async(ignore_result=ignored_by == "the call")
    results.mark_as_done(result.id, "of somebody else")
    assert deliver(redelivered=True).state == "SUCCESS"
    assert bodies


def test_a_copy_that_meets_contention_stays_marked_as_a_copy(app, deliver, syncguard_backend):
    @locked_task(app=app, name="retrying", key="k")
    def retrying(): ...

    retrying.delay()
    with syncguard_backend.acquire("k", TTL_MS, holder="somebody else"):
        assert deliver(redelivered=True).state == "RETRY"
    assert deliver().came_with["earlier"] == {}


def test_each_lock_of_a_copy_is_checked_separately(app, deliver, syncguard_backend):
    @app.task(name="double", shared=False)
    @locked(key="outer", ttl_ms=TTL_MS)
    @locked(key="k", ttl_ms=TTL_MS)
    def double():
        return "done"

    result = double.delay()
    label = holder_label("double", result.id)
    held = syncguard_backend.acquire("k", TTL_MS, holder=label)
    look(deliver, first_time=True)
    assert not syncguard_backend.is_locked("outer")
    held.release()
    assert is_dropped(deliver)


class TestIsOwnDelivery:
    def call(self, app, retries=0, redelivered=False, header=None, is_eager=False, **attributes):
        @app.task(name="some", shared=False, **attributes)
        def some(): ...

        context = Context(
            id=str(uuid.uuid4()),
            retries=retries,
            called_directly=False,
            is_eager=is_eager,
            delivery_info={"redelivered": redelivered},
            **{HEADER: header or {}},
        )
        return Call(some.name, app.tasks["some"], context, app)

    def own(self, call, **options):
        return SimpleNamespace(holder=holder_label("some", call.task_id, **options))

    def test_the_holder_with_the_id_of_a_redelivered_message_is_its_own_delivery(self, app):
        call = self.call(app, redelivered=True)
        assert is_own_delivery(call, self.own(call))

    def test_a_second_publication_with_the_same_id_is_not_its_own_delivery(self, app):
        call = self.call(app)
        assert not is_own_delivery(call, self.own(call))

    def test_a_holder_with_another_id_is_not_its_own_delivery(self, app):
        call = self.call(app, redelivered=True)
        assert not is_own_delivery(call, SimpleNamespace(holder=holder_label("some", "other")))

    def test_a_message_published_for_a_lost_worker_is_a_copy(self, app):
        lost = self.call(app, retries=1, retry_on_worker_lost=True)
        assert is_copy(lost)

    def test_a_retry_that_the_task_requested_is_not_a_copy(self, app):
        assert not is_copy(self.call(app, 1, header={"after": {}}, retry_on_worker_lost=True))

    def test_a_retry_is_not_a_copy_if_the_task_is_not_published_again_for_lost_workers(self, app):
        assert not is_copy(self.call(app, retries=1))

    def test_an_eager_call_is_not_a_copy(self, app):
        assert not is_copy(self.call(app, redelivered=True, is_eager=True))

    def test_a_direct_call_is_not_a_copy(self, app):
        assert not is_copy(Call("some", None, None, app))


def test_the_label_of_a_copy_is_marked_and_its_task_id_can_be_read():
    label = holder_label("shop.settle", "0b7c", redelivered=True)
    assert label.endswith(" (delivered again)")
    assert is_redelivered(label)
    assert task_id_in(label, "shop.settle") == "0b7c"
    assert not is_redelivered(holder_label("shop.settle", "0b7c"))
    assert not is_redelivered(None)
