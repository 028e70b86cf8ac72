"""Real workers on real Redis servers: one for messages and results, one for the locks.

The servers and the workers are shared by all tests; a test has its own keys. Workers are started
when the first test needs their pool.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer

from syncguard._lock import acquire_with_retries
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer
from syncguard_celery import current_fence, locked_task
from syncguard_celery.publish_lock import cleanup

WORKER_APP = Path(__file__).parent / "worker_app"
TIMEOUT_S = 90.0


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that has a real worker as slow."""
    for item in items:
        if "start_worker" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


def wait_for(condition: Callable[[], Any], seconds: float = TIMEOUT_S) -> Any:
    """Wait until the condition returns a true value, and return that value."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {seconds} s: {condition}")
        time.sleep(0.01)


@pytest.fixture(name="eventually", scope="session")
def _eventually() -> Callable[..., Any]:
    return wait_for


class Worker:
    """A ``celery worker`` process with its own queue."""

    def __init__(
        self, folder: Path, pool: str, concurrency: int, *options: str, queue: str | None = None
    ) -> None:
        self.queue = queue or f"{pool}-{uuid.uuid4().hex[:8]}"
        self.log_file = folder / f"worker-{pool}-{uuid.uuid4().hex[:8]}.log"
        command = [
            *(sys.executable, "-m", "celery", "-A", "worker_app", "worker"),
            *("-P", pool, "-c", str(concurrency), "-Q", self.queue, "-n", f"{uuid.uuid4().hex}@h"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "DEBUG"),
            *options,
        ]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=WORKER_APP
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return " ready." in self.log

        wait_for(ready, 200)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = TIMEOUT_S) -> None:
        self.process.wait(seconds)

    def kill_children(self) -> None:
        """kill -9 for the pool's processes."""
        for pid in _children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """kill -9 for the worker and the pool's processes."""
        self.process.send_signal(signal.SIGSTOP)  # first, because it would start new ones
        self.kill_children()
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill_all()


def _children(pid: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listing.stdout.split()]


@pytest.fixture(scope="session")
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def lock_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def worker_app(
    broker: RedisServer, lock_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The app and its tasks, for publishing from here."""
    base = broker.url.rsplit("/", 1)[0]
    environment = {
        "WORKER_APP_BROKER": os.environ.get("WORKER_APP_AMQP", f"{base}/0"),
        "WORKER_APP_RESULTS": f"{base}/1",
        "WORKER_APP_NOTES": f"{base}/2",
        # redis-py 5 waits for ever otherwise.
        "WORKER_APP_LOCKS": f"{lock_server.url}?socket_timeout=5",
        "WORKER_APP_FOLDER": str(tmp_path_factory.mktemp("worker_app")),
        "PYTHONWARNINGS": "default",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(WORKER_APP))
        module = importlib.import_module("worker_app")
        yield module
        gc.collect()  # results unsubscribe from their server, which must still run
        module.app.close()
        module.notes.close()


@pytest.fixture(scope="session")
def start_worker(
    worker_app: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Worker]]:
    """Start more workers; all of them are stopped at the end of the session."""
    folder = tmp_path_factory.mktemp("logs")
    started: list[Worker] = []

    def start(pool: str, concurrency: int = 1, *options: str, **more: Any) -> Worker:
        if pool == "gevent" and find_spec("gevent") is None:
            pytest.skip("gevent is not installed")
        worker = Worker(folder, pool, concurrency, *options, **more)
        started.append(worker)
        worker.wait_until_ready()
        return worker

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.terminate()
    for worker in started:
        worker.stop()


@pytest.fixture(scope="session")
def workers(start_worker: Callable[..., Worker]) -> Callable[[str], Worker]:
    """The session's worker of a pool; it runs a few tasks at a time."""
    known: dict[str, Worker] = {}

    def worker(pool: str) -> Worker:
        if pool not in known:
            known[pool] = start_worker(pool, 1 if pool == "solo" else 4)
        return known[pool]

    return worker


@pytest.fixture(scope="session")
def prefork(workers: Callable[[str], Worker]) -> Worker:
    return workers("prefork")


@pytest.fixture(scope="session")
def killable(start_worker: Callable[..., Worker]) -> Worker:
    """A worker for tests that kill its processes, because their coverage data is lost."""
    return start_worker("prefork", 2)


@pytest.fixture(params=["prefork", "threads", "solo", "gevent"])
def any_pool(request: pytest.FixtureRequest, workers: Callable[[str], Worker]) -> Worker:
    return workers(request.param)


@pytest.fixture
def locks(lock_server: RedisServer) -> Iterator[RedisBackend]:
    """The backend that the workers use, for this process."""
    with RedisBackend.from_url(lock_server.url) as backend:
        yield backend


class Scene:
    """The name that one test uses for its keys, notes and ``go``."""

    def __init__(self, worker_app: ModuleType) -> None:
        self.name = uuid.uuid4().hex
        self.worker_app = worker_app

    def notes(self, name: str | None = None) -> list[dict[str, Any]]:
        found = self.worker_app.notes.lrange(f"notes:{name or self.name}", 0, -1)
        return [json.loads(line) for line in found]

    def events(self) -> list[str]:
        return [line["event"] for line in self.notes()]

    def seen(self, event: str, times: int = 1, name: str | None = None) -> dict[str, Any]:
        """Wait for notes of this event, and return the last one."""

        def found() -> list[dict[str, Any]] | None:
            matching = [line for line in self.notes(name) if line["event"] == event]
            return matching if len(matching) >= times else None

        matching: list[dict[str, Any]] = wait_for(found)
        return matching[-1]

    def go(self) -> None:
        self.worker_app.notes.set(f"go:{self.name}", "1")


@pytest.fixture
def deliver_twice(
    prefork: Worker, worker_app: ModuleType, broker: RedisServer
) -> Callable[..., Any]:
    """Publish a task once, and make the broker deliver the message twice."""

    def publish(task: Any, *args: object) -> Any:
        aside = f"aside-{uuid.uuid4().hex}"
        result = task.apply_async(args, queue=aside)
        with broker.client() as client:
            message = json.loads(client.lpop(aside))
            message["properties"]["delivery_info"]["routing_key"] = prefork.queue
            for _ in range(2):
                message["properties"]["delivery_tag"] = uuid.uuid4().hex
                client.lpush(prefork.queue, json.dumps(message))
        return result

    return publish


@pytest.fixture
def scene(worker_app: ModuleType) -> Iterator[Scene]:
    scene = Scene(worker_app)
    yield scene
    scene.go()  # so that no task waits after a failed test


@pytest.fixture
def long_cleanup_wait(monkeypatch):
    """A publish-time lock that no task adopted is released when the call that releases it returns:
    a busy machine needs more than a fifth of a second."""
    monkeypatch.setattr(cleanup, "_WAIT_S", 60.0)
    monkeypatch.setattr(cleanup._release_thread, "_is_stuck", False)  # by an earlier test


@pytest.fixture
def app(syncguard_backend, long_cleanup_wait):
    """An app in this process, without a worker."""
    app = Celery("direct", broker="memory://", fixups=[], set_as_current=False)
    app.conf.task_default_queue = uuid.uuid4().hex  # all tests share the broker in memory
    app.conf.syncguard_backend = syncguard_backend
    yield app
    app.close()


@pytest.fixture
def deliver(app):
    """Runs the oldest message in this process, as a worker would: through Celery's own tracer.

    Returns the final state of the task and the header of its message. ``redelivered`` is the
    flag of a broker for a message that it delivered before.
    """

    def deliver(redelivered=False):
        with app.connection_for_read() as connection:
            queue = connection.SimpleQueue(app.conf.task_default_queue)
            message = queue.get(block=False)
            message.ack()
            queue.close()
        args, kwargs, embedded = message.payload
        headers = json.loads(json.dumps(message.headers))
        came_with = json.loads(json.dumps(headers.get("syncguard") or {}))
        task = app.tasks[headers["task"]]
        request = {**headers, **embedded, "args": args, "kwargs": kwargs, "is_eager": False}
        delivery_info = {**message.delivery_info, "redelivered": redelivered}
        request |= {"delivery_info": delivery_info, "called_directly": False}
        traced = build_tracer(task.name, task, app=app)(headers["id"], args, kwargs, request)
        state = traced.info.state if traced.info else "SUCCESS"
        raised = traced.info.retval if traced.info else None
        return SimpleNamespace(
            state=state, result=traced.retval, raised=raised, came_with=came_with
        )

    return deliver


@pytest.fixture
def long_attempts(monkeypatch):
    """One attempt to acquire may take a minute: a busy machine needs more than half a second."""
    monkeypatch.setattr(acquire_with_retries, "MIN_ATTEMPT_MS", 60_000)


@pytest.fixture
def settle(app, long_attempts):
    """A locked task of that app."""

    @locked_task(app=app, name="settle", key="invoice:{invoice_id}", contention_timeout_ms=300)
    def settle(invoice_id):
        return current_fence()

    return settle
