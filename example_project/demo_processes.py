"""All processes of the demo, started in order and always stopped in reverse order.

The web server runs in this process, so that the buttons of its page control the store of the
locks and the worker that this process started, and no others.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

from example_project.lock_store import Pause, lock_store
from syncguard.testing import RedisServer

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 3.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end the demo."""


class CannotStart(Exception):
    """Something that the demo needs did not start; the text says what to do."""


@contextlib.contextmanager
def environment() -> Iterator[Pause | None]:
    """Start servers and set up Django. Yields what pauses the store of the locks, if it may.

    Messages have a separate Redis: pausing the locks must not pause Celery.
    """
    with contextlib.ExitStack() as started:
        pause = started.enter_context(lock_store())
        if "CELERY_BROKER_URL" not in os.environ:
            os.environ["CELERY_BROKER_URL"] = started.enter_context(RedisServer()).url
        folder = started.enter_context(tempfile.TemporaryDirectory(prefix="syncguard-demo-"))
        os.environ["EXAMPLE_DATABASE"] = str(Path(folder) / "example.sqlite3")
        os.environ["EXAMPLE_QUEUE"] = f"syncguard-demo-{secrets.token_hex(4)}"
        os.environ["EXAMPLE_SECRET_KEY"] = secrets.token_urlsafe(40)
        os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"

        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        started.callback(connections.close_all)
        call_command("migrate", verbosity=0, interactive=False)
        with _explained():
            call_command("syncguard_setup", stdout=io.StringIO())
        yield pause


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from django.core.management import CommandError

    try:
        yield
    except CommandError as error:
        raise CannotStart(f"the store at SYNCGUARD_URL cannot be used: {error}") from error


class Worker:
    """The demo's own Celery worker: its main process and the processes that run tasks."""

    def __init__(self) -> None:
        self.node = f"syncguard-demo-{os.getpid()}@localhost"
        self.log = Path(os.environ["EXAMPLE_DATABASE"]).with_name("worker.log")
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 - no user input
                [
                    *(sys.executable, "-m", "celery", "-A", "example_project", "worker"),
                    *("-P", "prefork", "-c", str(PROCESSES), "-n", self.node, "-l", "INFO"),
                    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                ],
                cwd=ROOT,
                # Temporary files of killed processes are removed with the folder.
                env={**os.environ, "TMPDIR": str(self.log.parent)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal must not reach the worker: this process stops it.
                start_new_session=True,
            )

        self._cleanup = _CleanupShell(self.process.pid, self.log.parent)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            self.require_alive()
            if time.monotonic() > deadline:
                raise CannotStart(f"the Celery worker is not ready. Its log:\n{self.log_tail()}")

    def require_alive(self) -> None:
        if self.process.poll() is not None:
            raise CannotStart(f"the Celery worker ended. Its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def kill_child(self, pid: int) -> None:
        """kill -9 for one of the processes that run tasks."""
        stats = self._inspect().stats() or {}
        if pid not in stats.get(self.node, {}).get("pool", {}).get("processes", ()):
            raise ProcessLookupError(f"{pid} is not a process of the demo's worker")
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Give running tasks a short time to end, then kill all processes."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        # The worker has its own session: everything left in it was started by the worker.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._cleanup.stop()

    def _answers(self) -> bool:
        from kombu.exceptions import OperationalError

        try:
            return bool(self._inspect(timeout_s=0.5).ping())
        except OperationalError as error:
            raise CannotStart("no server answers at CELERY_BROKER_URL") from error

    def _inspect(self, timeout_s: float = 5.0) -> Any:
        from example_project.celery import app

        return app.control.inspect(destination=[self.node], timeout=timeout_s, limit=1)


class _CleanupShell:
    """Kills the worker and removes the folder if this process is killed.

    A shell that reads from a pipe. A line means that this process stopped normally; the end of the
    pipe without a line means that it was killed.
    """

    _SCRIPT = 'read -r _ || { kill -s KILL -- "-$1"; rm -rf -- "$2"; }'

    def __init__(self, session: int, folder: Path) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - a constant script
            ["/bin/sh", "-c", self._SCRIPT, "cleanup", str(session), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        self._shell.communicate(b"stopped\n")


@contextlib.contextmanager
def worker(pause: Pause | None) -> Iterator[Worker]:
    """Start a worker, and set the controls of the scenes."""
    from example_project.celery import app
    from example_project.story.controls import controls
    from example_project.story.scene_run import stopping
    from syncguard import LockError
    from syncguard_django import locks

    try:
        locks["default"].is_locked("anything")
    except LockError as error:
        raise CannotStart(f"no server answers at SYNCGUARD_URL: {error}") from error
    running: Worker | None = None
    try:
        with _signals_deferred():
            running = Worker()
        running.wait_until_ready()
        controls.kill = running.kill_child
        controls.pause = pause
        yield running
    finally:
        stopping.set()
        if running is not None:
            running.stop()
        app.close()


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals to the end of the block, so that a process started there can be stopped."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda sent, _: arrived.append(sent))
        for number in STOP_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in arrived[:1]:
            signal.raise_signal(received)


class _WebServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextlib.contextmanager
def web_server(port: int | None) -> Iterator[str]:
    """Serve the site on loopback. Yields its address."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.servers.basehttp import WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class SilentHandler(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = _bind(port, SilentHandler)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bind(port: int | None, handler: Any) -> _WebServer:
    """Bind the given port; without one, 8000 or any free port."""
    candidates = [8000, 0] if port is None else [port]
    for candidate in candidates:
        try:
            return _WebServer(("127.0.0.1", candidate), handler)
        except OSError as error:
            refusal = error.strerror
    raise CannotStart(f"port {port} cannot be used: {refusal}. Try --port 0.")
