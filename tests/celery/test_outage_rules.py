"""The lock's server cannot be reached: which tasks are published again, when, and for how long."""

from __future__ import annotations

import threading
import time

import pytest
from celery import Celery, Task
from celery.app.trace import build_tracer
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import after_task_publish
from kombu.exceptions import OperationalError
from short_time_out import short_time_out
from wrapped_backends import FailsSomeAdoptions, WrappedBackend, release_as_administrator

from syncguard import LockError, LockLost
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer
from syncguard_celery import current_fence, locked_task, outage, republishing
from syncguard_celery.holder_label import holder_label
from syncguard_celery.message_header import HEADER


class Failing(WrappedBackend):
    """Raises this error for the next attempts, and counts all attempts."""

    def __init__(self, backend, code="ServiceUnavailable", failures=99):
        super().__init__(backend)
        self.code, self.failures, self.attempts = code, failures, 0

    def acquire(self, *args, **options):
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise LockError(self.code)
        return self.backend.acquire(*args, **options)


@pytest.fixture
def make(app):
    """A locked task on this backend."""

    def make(backend, body=current_fence, name="outage", **options):
        @locked_task(app=app, name=name, key="k", backend=backend, **options)
        def settle():
            return body()

        return settle

    return make


@pytest.fixture
def clock(monkeypatch):
    """Sets the clocks that outages use, the wall clock and the monotonic clock: only a test moves
    them."""
    # A whole second: headers have whole milliseconds.
    started, started_monotonic = int(time.time()), time.monotonic()

    class Clock:
        ahead = 0.0

        def time(self):
            return started + self.ahead

        def monotonic(self):
            return started_monotonic + self.ahead

        def sleep(self, seconds):
            time.sleep(seconds)

    clock = Clock()
    monkeypatch.setattr(outage, "time", clock)
    return clock


@pytest.fixture
def published():
    """The headers of all published messages."""
    headers_seen = []

    def receive(headers=None, **_):
        headers_seen.append(headers)

    after_task_publish.connect(receive)
    yield headers_seen
    after_task_publish.disconnect(receive)


@pytest.mark.parametrize("code", ["ServiceUnavailable", "NetworkTimeout", "RateLimited"])
def test_a_temporary_error_is_retried(make, deliver, syncguard_backend, clock, code):
    make(Failing(syncguard_backend, code, failures=1)).delay()
    first = deliver()
    assert first.state == "RETRY"
    clock.ahead = 2
    again = deliver()
    assert (again.state, again.result) == ("SUCCESS", "000000000000001")
    assert again.came_with["tries"] == 1


@pytest.mark.parametrize("code", ["AuthFailed", "InvalidArgument", "Internal"])
def test_a_permanent_error_fails_at_once(make, deliver, syncguard_backend, code):
    make(Failing(syncguard_backend, code)).delay()
    assert deliver().state == "FAILURE"


def test_a_task_succeeds_after_a_real_outage(make, deliver, syncguard_redis, eventually):
    with RedisBackend.from_url(syncguard_redis.url) as backend:
        task = make(backend)
        syncguard_redis.kill()
        task.delay()
        assert deliver().state == "RETRY"
        syncguard_redis.restart()
        eventually(lambda: deliver().state == "SUCCESS")


def test_an_outage_does_not_count_against_max_retries(
    make, deliver, syncguard_backend, published, clock
):
    make(Failing(syncguard_backend), max_retries=0).delay()
    for _ in range(3):
        assert deliver().state == "RETRY"
        clock.ahead += 2
    assert {headers["retries"] for headers in published} == {0}


def test_the_delay_grows_up_to_ten_seconds(make, deliver, syncguard_backend, clock):
    make(Failing(syncguard_backend)).delay()
    for most in (1, 2, 4, 8, 10, 10):
        delay = deliver().raised.when
        assert most / 2 <= delay <= most
        clock.ahead += 2


def test_the_delay_is_below_the_visibility_timeout(app, make, deliver, syncguard_backend):
    app.conf.broker_transport_options = {"visibility_timeout": 0.5}
    make(Failing(syncguard_backend)).delay()
    assert deliver().raised.when == 0.25


def test_retries_end_after_the_limit_since_the_first_failure(
    make, deliver, syncguard_backend, clock
):
    make(Failing(syncguard_backend), unavailable_timeout_ms=60_000).delay()
    deliver()
    clock.ahead = 59
    last = deliver()
    assert last.state == "RETRY"
    assert last.raised.when <= 1
    clock.ahead = 61
    failed = deliver()
    assert failed.state == "FAILURE"
    assert isinstance(failed.raised, LockError)
    assert failed.raised.code == "ServiceUnavailable"


class TestOneAttemptAtATime:
    def test_a_server_is_not_tried_for_a_second_and_tasks_are_published_again_at_once(
        self, make, deliver, syncguard_backend, clock
    ):
        backend = Failing(syncguard_backend, failures=1)
        task = make(backend)
        for _ in range(3):
            task.delay()
        assert [deliver().state for _ in range(3)] == ["RETRY"] * 3
        assert backend.attempts == 1
        clock.ahead = 1.1
        assert [deliver().state for _ in range(3)] == ["SUCCESS"] * 3
        assert backend.attempts == 4

    def test_no_task_tries_the_server_while_another_attempt_runs(
        self, make, deliver, syncguard_backend, clock
    ):
        backend = Failing(syncguard_backend, failures=1)
        task = make(backend)
        task.delay()
        deliver()
        clock.ahead = 2
        # As another thread, whose attempt has no answer yet.
        assert outage._circuits[backend].may_try()
        deliver()
        assert backend.attempts == 1

    def test_a_task_with_on_unavailable_fail_tries_the_server(
        self, make, deliver, syncguard_backend
    ):
        backend = Failing(syncguard_backend, failures=1)
        task = make(backend, on_unavailable="fail")
        task.delay()
        task.delay()
        assert [deliver().state for _ in range(2)] == ["FAILURE", "SUCCESS"]

    def test_contention_ends_the_outage(self, make, deliver, syncguard_backend, clock):
        backend = Failing(syncguard_backend, failures=1)
        make(backend).delay()
        deliver()
        clock.ahead = 2
        with syncguard_backend.acquire("k", holder="somebody else"):
            assert deliver().state == "RETRY"
        assert deliver().state == "SUCCESS"

    def test_an_authentication_error_ends_the_outage(self, make, deliver, syncguard_backend, clock):
        backend = Failing(syncguard_backend, failures=1)
        task = make(backend)
        task.delay()
        deliver()
        clock.ahead = 2
        backend.code, backend.failures = "AuthFailed", 1
        assert deliver().state == "FAILURE"
        task.delay()
        assert deliver().state == "SUCCESS"

    def test_an_attempt_ended_by_a_time_limit_continues_the_outage(
        self, make, deliver, syncguard_backend, clock
    ):
        class Limited(Failing):
            def acquire(self, *args, **options):
                if self.attempts == 1:
                    self.attempts += 1
                    raise SoftTimeLimitExceeded
                return super().acquire(*args, **options)

        backend = Limited(syncguard_backend, failures=1)
        task = make(backend)
        task.delay()
        deliver()
        clock.ahead = 2
        assert deliver().state == "FAILURE"
        task.delay()
        assert deliver().state == "RETRY"
        assert backend.attempts == 2

    def test_an_outage_of_one_server_does_not_affect_another(
        self, make, settle, deliver, syncguard_backend
    ):
        make(Failing(syncguard_backend), name="other").delay()
        assert deliver().state == "RETRY"
        settle.delay(1)
        assert [deliver().state for _ in range(2)] == ["RETRY", "SUCCESS"]


class TestPolicies:
    def test_a_task_with_policy_fail_fails(self, make, deliver, syncguard_backend):
        make(Failing(syncguard_backend), on_unavailable="fail").delay()
        assert deliver().state == "FAILURE"

    @pytest.mark.parametrize(("chosen", "state"), [("fail", "FAILURE"), ("retry", "RETRY")])
    def test_a_callable_chooses_the_policy_from_the_arguments(
        self, app, deliver, syncguard_backend, chosen, state
    ):
        @locked_task(
            app=app,
            key="k:{policy}",
            backend=Failing(syncguard_backend),
            on_unavailable=lambda policy: policy,
        )
        def choosing(policy): ...

        choosing.delay(chosen)
        assert deliver().state == state

    def test_a_callable_that_returns_an_unknown_policy_is_an_error(
        self, make, deliver, syncguard_backend
    ):
        make(Failing(syncguard_backend), on_unavailable=lambda: "hope").delay()
        error = deliver().raised
        assert error.code == "InvalidArgument"
        assert "must return one of ('retry', 'fail')" in str(error)


class TestOutsideWorkers:
    def test_a_direct_call_raises(self, make, syncguard_backend):
        with pytest.raises(LockError) as raised:
            make(Failing(syncguard_backend))()
        assert raised.value.code == "ServiceUnavailable"

    def test_an_eager_call_raises(self, make, syncguard_backend):
        with pytest.raises(LockError):
            make(Failing(syncguard_backend)).apply().get()

    def test_the_error_is_raised_in_the_publisher(self, make, syncguard_backend):
        with pytest.raises(LockError):
            make(Failing(syncguard_backend), at="publish").delay()

    def test_a_lost_lock_is_raised(self, make, syncguard_backend):
        task = make(
            syncguard_backend,
            lambda: release_as_administrator(syncguard_backend, "k"),
            on_lost="retry",
        )
        with pytest.raises(LockLost):
            task()


def test_the_publish_time_lock_stays_held_through_an_outage(app, deliver, syncguard_backend, clock):
    backend = FailsSomeAdoptions(syncguard_backend, failures=1)
    task = locked_task(app=app, name="once", key="k", backend=backend, at="publish")(current_fence)
    task.delay()
    assert deliver().state == "RETRY"
    assert syncguard_backend.is_locked("k")
    clock.ahead = 2
    again = deliver()
    assert (again.state, again.result) == ("SUCCESS", "000000000000001")


def test_the_start_of_the_contention_is_kept_through_an_outage(
    make, deliver, syncguard_backend, clock
):
    backend = Failing(syncguard_backend, failures=0)
    make(backend).delay()
    with syncguard_backend.acquire("k", holder="somebody else"):
        deliver()
        backend.failures = 1
        since = deliver().came_with["since"]
        clock.ahead = 2
        assert deliver().came_with["since"] == since


@pytest.mark.parametrize("policy", ["skip", "fail", "retry"])
def test_an_attempt_whose_answer_was_lost_is_not_contention(
    make, deliver, syncguard_redis, eventually, policy
):
    with syncguard_redis.client(retry=None) as client:
        backend = RedisBackend(client)
        backend.acquire("other").release()  # so that it is connected
        task = make(backend, lambda: "ran", on_contention=policy)
        task.delay()
        with syncguard_redis.paused(), short_time_out(backend):
            assert deliver().state == "RETRY"
        # The attempt without an answer may have the lock for a moment, until it is undone.
        states = []
        eventually(lambda: states.append(deliver().state) or states[-1] != "RETRY")
        assert states[-1] == "SUCCESS"
        backend.close()


class TestLost:
    def lose(self, backend, times, error=None):
        def body():
            if len(runs) < times:
                runs.append(1)
                release_as_administrator(backend, "k")
                if error is not None:
                    raise error
            return "done"

        runs = []
        return body

    def test_a_task_that_lost_its_lock_is_published_again(self, make, deliver, syncguard_backend):
        make(syncguard_backend, self.lose(syncguard_backend, 1), on_lost="retry").delay()
        lost = deliver()
        assert lost.state == "RETRY"
        assert isinstance(lost.raised.exc, LockLost)
        assert deliver().result == "done"

    def test_a_task_that_fails_because_of_the_loss_is_published_again(
        self, make, deliver, syncguard_backend
    ):
        body = self.lose(syncguard_backend, 1, LockLost())
        make(syncguard_backend, body, on_lost="retry").delay()
        assert deliver().state == "RETRY"
        assert deliver().result == "done"

    def test_a_run_after_a_loss_counts_against_max_retries(self, make, deliver, syncguard_backend):
        body = self.lose(syncguard_backend, 9)
        make(syncguard_backend, body, on_lost="retry", max_retries=2).delay()
        assert [deliver().state for _ in range(3)] == ["RETRY", "RETRY", "FAILURE"]

    def test_runs_after_a_loss_have_no_limit_without_max_retries(
        self, make, deliver, syncguard_backend
    ):
        body = self.lose(syncguard_backend, 4)
        make(syncguard_backend, body, on_lost="retry", max_retries=None).delay()
        assert [deliver().state for _ in range(5)] == ["RETRY"] * 4 + ["SUCCESS"]

    def test_a_task_with_on_lost_raise_is_not_published_again(
        self, make, deliver, syncguard_backend
    ):
        make(syncguard_backend, self.lose(syncguard_backend, 1)).delay()
        assert deliver().state == "FAILURE"

    def test_a_task_that_fails_without_a_loss_is_not_published_again(
        self, make, deliver, syncguard_backend
    ):
        make(syncguard_backend, lambda: 1 / 0, on_lost="retry").delay()
        assert deliver().state == "FAILURE"

    def test_a_task_that_retries_itself_is_published_once(
        self, app, deliver, syncguard_backend, published
    ):
        @locked_task(app=app, key="k", backend=syncguard_backend, on_lost="retry", bind=True)
        def retrying(self):
            if self.request.retries == 0:
                release_as_administrator(syncguard_backend, "k")
                raise self.retry(countdown=0)
            return "done"

        retrying.delay()
        assert deliver().state == "RETRY"
        assert len(published) == 2


class TestTheBrokerIsDownToo:
    @pytest.fixture
    def broker(self):
        with RedisServer(aof=True) as server:
            yield server

    @pytest.fixture
    def app(self, broker):
        app = Celery("direct", broker=broker.url, fixups=[], set_as_current=False)
        app.conf.task_publish_retry = False
        app.conf.broker_connection_timeout = 1
        yield app
        app.close()

    def run(self, app, task):
        request = {
            "id": "0b7c",
            "task": task.name,
            "retries": 0,
            "is_eager": False,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
        }
        return build_tracer(task.name, task, app=app)("0b7c", [], {}, request)

    def test_publishing_is_retried_in_the_slot_until_the_broker_is_back(
        self, app, make, broker, syncguard_backend, caplog
    ):
        task = make(Failing(syncguard_backend))
        task.name  # noqa: B018 - makes the task now
        broker.kill()

        def restart():
            deadline = time.monotonic() + 30
            while "Could not publish task" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            broker.restart()

        thread = threading.Thread(target=restart)
        thread.start()
        traced = self.run(app, task)
        thread.join()
        assert traced.info.state == "RETRY"
        with broker.client() as client:
            assert client.llen("celery") == 1

    def test_publishing_fails_after_unavailable_timeout_ms(
        self, app, make, broker, syncguard_backend, monkeypatch
    ):
        monkeypatch.setattr(republishing, "_PAUSE_S", 0.3)
        task = make(Failing(syncguard_backend), unavailable_timeout_ms=1_000)
        broker.kill()
        traced = self.run(app, task)
        assert traced.info.state == "FAILURE"
        assert traced.info.retval.code == "ServiceUnavailable"

    @pytest.mark.usefixtures("long_cleanup_wait")
    def test_a_lock_whose_message_could_not_be_published_is_released(
        self, app, make, broker, syncguard_backend, monkeypatch
    ):
        monkeypatch.setattr(republishing, "_PAUSE_S", 2.0)
        task = make(
            FailsSomeAdoptions(syncguard_backend, 1), at="publish", unavailable_timeout_ms=1_000
        )
        lock_id = syncguard_backend.acquire("k", holder=holder_label("outage", "0b7c")).lock_id
        broker.kill()
        request = {"id": "0b7c", HEADER: {"lock": lock_id}, "is_eager": False}
        traced = build_tracer(task.name, task, app=app)("0b7c", [], {}, request)
        assert traced.info.state == "FAILURE"
        assert not syncguard_backend.is_locked("k")


def test_a_second_attempt_to_publish_is_marked_as_a_possible_copy(
    make, deliver, syncguard_backend, monkeypatch, published
):
    monkeypatch.setattr(republishing, "_PAUSE_S", 0.0)

    class AnswerLost(Task):
        """Its second message is published, but the call raises."""

        def apply_async(self, *args, **options):
            result = super().apply_async(*args, **options)
            if len(published) == 2:
                raise OperationalError
            return result

    make(Failing(syncguard_backend), base=AnswerLost).delay()
    deliver()
    assert [headers.get(HEADER, {}).get("earlier") for headers in published] == [None, None, {}]
