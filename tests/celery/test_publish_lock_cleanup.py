"""A publish-time lock is released if no task adopts it, whatever happens to its message."""

from __future__ import annotations

import functools
import threading

import pytest
from celery import Task
from celery.app.task import Context
from celery.exceptions import Ignore, NotRegistered
from celery.signals import task_revoked
from wrapped_backends import FailsSomeAdoptions, WrappedBackend

from syncguard import LockError, generate_lock_id, with_telemetry
from syncguard_celery import current_fence, locked_task
from syncguard_celery.publish_lock.cleanup import _ReleaseThread
from syncguard_celery.running_calls import enclosing


class Gate(Task):
    """A base class that never calls the function."""

    def __call__(self, *_args, **_kwargs):
        return "not today"


class Maintenance(Task):
    def before_start(self, *_):
        raise RuntimeError("maintenance")


@pytest.mark.parametrize(("base", "ends"), [(Gate, "SUCCESS"), (Maintenance, "FAILURE")])
def test_it_is_released_when_the_task_ends_before_its_function_is_called(
    app, deliver, syncguard_backend, base, ends
):
    @locked_task(app=app, base=base, key="k", at="publish")
    def task(): ...

    first = task.delay()
    assert syncguard_backend.is_locked("k")
    assert deliver().state == ends
    assert not syncguard_backend.is_locked("k")
    assert task.delay().id != first.id


def test_it_is_released_when_the_worker_does_not_know_the_task(
    prefork, worker_app, scene, locks, eventually
):
    @locked_task(app=worker_app.app, name=f"new-{scene.name}", key="{name}", at="publish")
    def not_deployed_yet(name): ...

    result = not_deployed_yet.apply_async((scene.name,), queue=prefork.queue)
    with pytest.raises(NotRegistered):
        result.get(timeout=30)
    eventually(lambda: not locks.is_locked(scene.name))


def test_a_retry_requested_before_the_function_is_called_carries_the_lock(
    app, deliver, syncguard_backend
):
    class Later(Task):
        def before_start(self, *_):
            if not self.request.retries:
                raise self.retry(countdown=5)

    @locked_task(app=app, base=Later, key="k", at="publish")
    def task():
        return current_fence()

    task.delay()
    assert deliver().state == "RETRY"
    assert syncguard_backend.is_locked("k")
    assert deliver().result == "000000000000001"
    assert not syncguard_backend.is_locked("k")


def test_it_is_released_when_it_could_not_be_adopted(app, deliver, syncguard_backend):
    backend = FailsSomeAdoptions(syncguard_backend, 1)

    @locked_task(app=app, key="k", at="publish", backend=backend, on_unavailable="fail")
    def task(): ...

    task.delay()
    assert deliver().state == "FAILURE"
    assert not syncguard_backend.is_locked("k")


def test_a_retry_adopts_a_lock_that_could_not_be_adopted_before(app, deliver, syncguard_backend):
    @locked_task(
        app=app,
        key="k",
        at="publish",
        on_contention="skip",
        on_unavailable="fail",
        backend=FailsSomeAdoptions(syncguard_backend, 1),
        autoretry_for=(LockError,),
        retry_kwargs={"countdown": 1},
    )
    def task():
        return current_fence()

    task.delay()
    assert deliver().state == "RETRY"
    assert syncguard_backend.is_locked("k")
    assert deliver().result == "000000000000001"


@pytest.mark.parametrize("how", ["retry", "autoretry"])
def test_a_retry_is_published_if_its_lock_cannot_be_handed_over(
    app, deliver, syncguard_backend, how, caplog
):
    backend = FailsSomeAdoptions(syncguard_backend, 0)

    @locked_task(
        app=app,
        key="k",
        at="publish",
        bind=True,
        backend=backend,
        autoretry_for=(ZeroDivisionError,),
        retry_kwargs={"countdown": 1},
    )
    def task(self):
        if self.request.retries:
            return current_fence()
        backend.failures = 1
        if how == "retry":
            raise self.retry(countdown=1)
        return 1 / 0

    task.delay()
    assert deliver().state == "RETRY"
    assert "Could not hand over a lock" in caplog.text
    again = deliver()
    assert "lock" not in again.came_with
    assert again.result == "000000000000002"
    assert not syncguard_backend.is_locked("k")


def test_a_base_class_that_publishes_later_publishes_without_the_lock(
    app, deliver, syncguard_backend
):
    deferred = []

    class OnCommit(Task):
        def apply_async(self, *args, **options):
            deferred.append(functools.partial(super().apply_async, *args, **options))

    @locked_task(app=app, base=OnCommit, key="k", at="publish", on_contention="skip")
    def task():
        return current_fence()

    task.delay()
    assert not syncguard_backend.is_locked("k"), "after a rollback it would stay locked"
    for publish in deferred:
        publish()
    assert deliver().result == "000000000000002"


def test_a_message_without_headers_is_published_without_the_lock(app, syncguard_backend):
    app.conf.task_protocol = 1

    @locked_task(app=app, key="k", at="publish")
    def task(): ...

    task.delay()
    assert not syncguard_backend.is_locked("k")


def test_a_retry_does_not_make_the_key_again(app, deliver, syncguard_backend):
    keys = iter(["first"])

    @locked_task(app=app, key=lambda **_: next(keys), at="publish", bind=True)
    def task(self):
        if self.request.retries:
            return current_fence()
        raise self.retry(countdown=1)

    task.delay()
    assert deliver().state == "RETRY"
    assert syncguard_backend.is_locked("first")
    assert deliver().result == "000000000000001"


def nothing(): ...


class TestARevokedTask:
    """Its worker stores REVOKED at once, but drops the message only at the ETA."""

    @pytest.fixture
    def app(self, app):
        app.conf.result_backend = "cache+memory://"
        return app

    @pytest.fixture
    def task(self, app):
        @locked_task(app=app, key="k", at="publish", ttl_ms=5_000)
        def task(): ...

        return task

    def test_a_revoked_task_does_not_block_the_next_one(self, app, task, syncguard_backend):
        first = task.apply_async(countdown=3_600)
        app.backend.mark_as_revoked(first.id, "revoked", store_result=True)
        second = task.apply_async(countdown=7_200)
        assert second.id != first.id
        assert f"[{second.id}]" in syncguard_backend.lookup(key="k").holder

    def test_a_revoked_task_that_may_be_running_blocks_the_next_one(
        self, app, task, syncguard_backend
    ):
        first = task.delay()
        with app.connection_for_read() as connection:
            headers = connection.SimpleQueue(app.conf.task_default_queue).get(block=False).headers
        holder = syncguard_backend.lookup(key="k").holder
        assert syncguard_backend.adopt(headers["syncguard"]["lock"], 5_000, holder=holder).ok
        app.backend.mark_as_revoked(first.id, "terminated", store_result=True)
        assert task.delay().id == first.id

    @pytest.mark.parametrize("runs", [True, False])
    def test_terminating_a_running_task_does_not_report_its_lock_as_lost(
        self, app, syncguard_backend, runs
    ):
        """As the worker's main process does for revoke(terminate=True): it releases with the id in
        the message, which is not valid after the running task adopted the lock."""
        events = []
        observed = with_telemetry(syncguard_backend, on_event=events.append)
        task = locked_task(app=app, name="observed", key="k", at="publish", backend=observed)(
            nothing
        )
        task.delay()
        with app.connection_for_read() as connection:
            headers = connection.SimpleQueue(app.conf.task_default_queue).get(block=False).headers
        if runs:
            assert observed.adopt(headers["syncguard"]["lock"], 30_000)
        request = Context(dict(headers), syncguard=headers["syncguard"])
        task_revoked.send(sender=task, request=request, terminated=True, signum=15, expired=False)
        assert [(event.type, event.result) for event in events if event.type == "release"] == (
            [] if runs else [("release", "ok")]
        )
        assert syncguard_backend.is_locked("k") is runs

    def test_a_duplicate_is_not_published_if_the_result_store_cannot_be_read(
        self, app, task, monkeypatch
    ):
        def refuse(*_):
            raise NotImplementedError

        first = task.apply_async(countdown=3_600)
        monkeypatch.setattr(app.backend, "get_task_meta", refuse)
        assert task.delay().id == first.id


class Hanging(WrappedBackend):
    def __init__(self, backend):
        super().__init__(backend)
        self.go_on = threading.Event()
        self.released = []

    def lookup(self, *, lock_id):
        return lock_id

    def release(self, lock_id):
        self.go_on.wait(20)
        self.released.append(lock_id)


def test_a_lock_service_that_hangs_does_not_block_the_workers_main_loop(eventually):
    backend, release_thread = Hanging(None), _ReleaseThread()
    for number in range(100):  # would take 20 s if each call waited
        release_thread.release(backend, str(number))
    assert not backend.released
    backend.go_on.set()
    eventually(lambda: len(backend.released) == 100)


def test_a_failed_release_is_retried(eventually, syncguard_backend):
    class Failing(WrappedBackend):
        failures = 2

        def release(self, lock_id):
            if self.failures:
                self.failures -= 1
                raise LockError("ServiceUnavailable")
            return self.backend.release(lock_id)

    acquired = syncguard_backend.acquire("k", 60_000)
    _ReleaseThread().release(Failing(syncguard_backend), acquired.lock_id)
    eventually(lambda: not syncguard_backend.is_locked("k"))


def test_its_thread_starts_while_no_interrupt_can_come(app, syncguard_backend, monkeypatch):
    """On CPython 3.10 and 3.11, an interrupt of the task inside of start() would reach the new
    thread, and start() would wait for ever."""
    start, armed = threading.Thread.start, []

    def note_and_start(thread):
        if thread.name == "syncguard-cleanup":
            armed.append([outer.interrupt._armed for outer in enclosing()])
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note_and_start)

    @locked_task(app=app, key="k", on_lost="raise")
    def task():
        armed.append([outer.interrupt._armed for outer in enclosing()])
        _ReleaseThread().release(syncguard_backend, generate_lock_id())

    task.apply().get()
    assert armed == [[True], [False]]


def test_a_duplicate_of_an_eager_run_is_published(app, syncguard_backend):
    @locked_task(app=app, key="k", at="publish")
    def task(again=False):
        if again:
            published.append(task.delay())
        return syncguard_backend.lookup(key="k").holder

    published = []
    assert "[" not in task.apply((True,)).get()
    assert published[0].id
    app.conf.task_store_eager_result = True
    result = task.apply((False,))
    assert f"[{result.id}]" in result.get()


def test_a_task_that_raises_ignore_releases_its_lock(app, deliver, syncguard_backend):
    @locked_task(app=app, key="k", at="publish")
    def task():
        raise Ignore

    task.delay()
    assert deliver().state == "IGNORED"
    assert not syncguard_backend.is_locked("k")
