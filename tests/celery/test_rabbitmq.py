"""Locked tasks on RabbitMQ: a private server if it is installed, or one that is given."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu
import pytest

from syncguard.testing.free_port import free_port

# Debian's rabbitmq-server on the PATH requires its own user; the script that it calls does not.
PROGRAMS = os.pathsep.join(["/usr/lib/rabbitmq/bin", os.environ.get("PATH", "")])


@pytest.fixture(scope="module")
def rabbitmq(
    tmp_path_factory: pytest.TempPathFactory, eventually: Callable[..., object]
) -> Iterator[str]:
    """The URL of a RabbitMQ."""
    given = os.environ.get("SYNCGUARD_TEST_AMQP")
    if given:
        yield given
        return
    program = shutil.which("rabbitmq-server", path=PROGRAMS)
    if program is None:
        pytest.skip("no RabbitMQ: install rabbitmq-server, or set SYNCGUARD_TEST_AMQP to a URL")
    folder = tmp_path_factory.mktemp("rabbitmq")
    (folder / "plugins").write_text("[].")
    port, epmd_port = free_port(), free_port()
    environment = {
        **os.environ,
        "HOME": str(folder),  # for the cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_NODENAME": f"n{uuid.uuid4().hex[:8]}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
    }
    log = folder / "console.log"
    with log.open("wb") as console:
        server = subprocess.Popen(
            [program],
            env=environment,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    try:
        eventually(lambda: answers(url, server, log), 60)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
        # Erlang's name server is a daemon, and would keep running.
        subprocess.run(["epmd", "-kill"], env=environment, check=False, capture_output=True)


def answers(url: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()
    try:
        with kombu.Connection(url, connect_timeout=2) as connection:
            connection.connect()
    except OSError:
        return False
    return True


def test_locks_fences_and_publish_time_locks_work_with_rabbitmq(
    rabbitmq: str, worker_app: ModuleType
) -> None:
    # In separate processes: the app of this process uses Redis.
    queue = f"rabbit-{uuid.uuid4().hex}"
    environment = {**os.environ, "WORKER_APP_BROKER": rabbitmq, "WORKER_APP_QUEUE": queue}
    folder = os.path.dirname(str(worker_app.__file__))
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "worker_app", "worker", "-P", "solo", "-Q", queue],
        cwd=folder,
        env=environment,
    )
    try:
        subprocess.run(
            [sys.executable, "rabbitmq_client.py"],
            cwd=folder,
            env=environment,
            check=True,
            timeout=250,
        )
    finally:
        worker.terminate()
        worker.wait(30)


def test_the_task_of_a_killed_worker_is_delivered_again_with_a_higher_fence(
    rabbitmq: str,
    worker_app: ModuleType,
    scene: Any,
    start_worker: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORKER_APP_BROKER", rabbitmq)
    worker = start_worker("prefork", 1)
    with kombu.Connection(rabbitmq) as connection:
        result = worker_app.surviving.apply_async(
            (scene.name,), queue=worker.queue, connection=connection
        )
    entered = scene.seen("enter")
    worker.kill_all()
    start_worker("prefork", 1, queue=worker.queue)
    assert result.get(timeout=60) > entered["fence"]
