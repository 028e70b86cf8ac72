"""A lock's server that does not answer in time: what it grants later refuses no task."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from short_time_out import short_time_out
from undos_held_back import undos_held_back
from wait_until import wait_until
from wrapped_backends import WrappedBackend

from syncguard import NetworkTimeout
from syncguard.backend import CONTENDED
from syncguard.redis import RedisBackend
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer
from syncguard_celery import locked_task


@pytest.fixture
def server():
    with RedisServer() as own:
        yield own


@pytest.fixture
def backend(server):
    """Has no retries."""
    with (
        redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client,
        RedisBackend(client) as backend,
    ):
        backend.acquire("warm up").release()
        yield backend


@pytest.fixture
def app(app, backend):
    app.conf.syncguard_backend = backend
    return app


@pytest.fixture
def unique(app):
    @locked_task(app=app, name="unique", key="unique", at="publish")
    def unique():
        return "ran"

    return unique


@pytest.fixture
def is_queued(app):
    """The ids of the queued messages; takes them from the queue."""

    def ids():
        taken = []
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(app.conf.task_default_queue)
            while queue.qsize():
                message = queue.get(block=False)
                message.ack()
                taken.append(message.headers["id"])
            queue.close()
        return taken

    return ids


@pytest.fixture
def no_undo():
    """What a caller that comes back gets must not depend on undos."""
    with undos_held_back():
        yield


def is_locked(server, key):
    """As another process sees it."""
    with server.client() as client:
        return bool(client.exists(f"syncguard:{key}"))


def times_out(server, backend, operation):
    """Run the operation while Redis hangs; return when Redis has executed it after the hang."""
    backend.is_locked("the connection is open before the hang")
    before = server.commands_processed()["evalsha"]
    with server.paused(), short_time_out(backend), pytest.raises(NetworkTimeout):
        operation()
    wait_until(lambda: server.commands_processed()["evalsha"] > before)


def test_a_publish_that_timed_out_leaves_no_lock(server, backend, unique, is_queued):
    times_out(server, backend, unique.delay)
    wait_until(lambda: undo_thread.pending == 0)
    assert not is_locked(server, "unique")
    assert is_queued() == []


@pytest.mark.usefixtures("no_undo")
def test_a_publisher_that_comes_back_publishes(server, backend, unique, is_queued):
    times_out(server, backend, unique.delay)
    assert is_locked(server, "unique")
    result = unique.delay()
    assert unique.delay().id == result.id, "now it is queued: this one is a duplicate"
    assert is_queued() == [result.id]


@pytest.mark.usefixtures("no_undo")
def test_a_task_that_is_retried_after_a_time_out_does_not_skip_itself(
    server, backend, app, deliver
):
    @locked_task(
        app=app,
        name="import",
        key="import",
        on_contention="skip",
        on_unavailable="fail",
        autoretry_for=(NetworkTimeout,),
    )
    def import_feed():
        return "ran"

    import_feed.delay()
    backend.is_locked("the connection is open before the hang")
    before = server.commands_processed()["evalsha"]
    with server.paused(), short_time_out(backend):
        assert deliver().state == "RETRY"
    wait_until(lambda: server.commands_processed()["evalsha"] > before)
    assert is_locked(server, "import")
    assert deliver().result == "ran"


def test_a_failed_publish_leaves_no_lock_although_its_release_times_out(
    server, app, backend, unique, is_queued, monkeypatch
):
    def fail(*_args, **_options):
        server.pause()
        scope.enter_context(short_time_out(backend))
        raise OSError("the broker is down")

    with (
        ExitStack() as scope,
        monkeypatch.context() as patch,
        pytest.raises(OSError, match="broker"),
    ):
        patch.setattr(app, "send_task", fail)
        unique.delay()
    assert undo_thread.pending == 1
    server.resume()
    result = unique.delay()
    assert is_queued() == [result.id]
    wait_until(lambda: undo_thread.pending == 0)
    assert is_locked(server, "unique")


class AnswersLate(WrappedBackend):
    """The first acquire is granted too late: the lock is there when the holder is looked up."""

    lock_id = None

    def acquire(self, *args, **options):
        result = self.backend.acquire(*args, **options)
        if self.lock_id is None:
            self.lock_id = result.lock_id
            return CONTENDED
        return result

    def lookup_raw(self, **options):
        info = self.backend.lookup_raw(**options)
        self.backend.release(self.lock_id)
        return info


def test_a_publisher_is_no_duplicate_of_itself(app, backend, is_queued):
    @locked_task(app=app, name="late", key="late", at="publish", backend=AnswersLate(backend))
    def late():
        pass

    result = late.delay()
    assert is_queued() == [result.id]
    assert backend.is_locked("late")
