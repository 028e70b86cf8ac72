"""A private PostgreSQL for tests: start, kill, restart and stop it through one object."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from syncguard.testing.free_port import free_port
from syncguard.testing.postgres_programs import find_program, unprivileged_user
from syncguard.testing.server_orphans import Guard

if TYPE_CHECKING:
    import psycopg
    from typing_extensions import Self

_START_TIMEOUT_S: Final = 60.0
_NOT_YET: Final = ("Address already in use", "pre-existing shared memory block")
"""PostgreSQL does not start, but will: the processes of a killed server have not all ended."""

_PORT_ATTEMPTS: Final = 10
_POLL_S: Final = 0.01


class PostgresServer:
    """A temporary PostgreSQL on a free loopback port, with its data in a temporary folder.

    ::

        with PostgresServer() as server:
            backend = PostgresBackend.from_url(server.url)
            server.kill()       # SIGKILL to all its processes
            server.restart()    # same port, same data

    ``fsync=True`` writes every commit to disk, as in production. ``config`` takes settings of
    postgresql.conf, such as ``{"default_transaction_isolation": "serializable"}``.

    The server ends when the process that started it ends, also when that process is killed.
    Raises ``PostgresUnavailableError`` where no PostgreSQL can be found.
    """

    host: Final = "127.0.0.1"
    user: Final = "tests"
    database: Final = "postgres"

    def __init__(self, *, fsync: bool = False, config: Mapping[str, str] | None = None) -> None:
        self._fsync = fsync
        self._config = dict(config or {})
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._port = 0
        self._user: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def __repr__(self) -> str:
        where = f"{self.host}:{self._port}" if self._folder else "not started"
        return f"<PostgresServer {where}>"

    # Start and stop

    def start(self) -> None:
        """Start with empty databases, and return when the server answers."""
        if self._folder is not None:
            raise RuntimeError("this PostgresServer is already started; restart() starts it again")
        find_program("initdb")  # raises before anything is made
        self._user = unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="syncguard-postgres-"))
        try:
            if self._user is not None:
                shutil.chown(self._folder, self._user)
            self._make_data()
            for _ in range(_PORT_ATTEMPTS):
                self._port = free_port()
                if self._launch():
                    return
            raise RuntimeError(f"no free port for PostgreSQL in {_PORT_ATTEMPTS} attempts")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server in any state, and remove its data. Can be called again."""
        if os.getpid() != self._owner:
            return
        if self._process is not None:
            # Immediate shutdown: its data is deleted anyway.
            self._end(signal.SIGQUIT)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """SIGKILL to the server and all its processes: nothing is saved or closed properly."""
        process = self._running()
        for pid in [process.pid, *_children(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and data, after kill() or instead of the running one."""
        self._started()
        if self._process is not None:
            self._end(signal.SIGINT)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._launch():
            if time.monotonic() > deadline:
                raise RuntimeError(f"another process uses port {self._port} or the data")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # State

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server; restart() changes it."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; restart() does not change it."""
        self._started()
        return self._port

    @property
    def url(self) -> str:
        """The address, for psycopg and for ``PostgresBackend``."""
        return f"postgresql://{self.user}@{self.host}:{self.port}/{self.database}"

    @property
    def folder(self) -> Path:
        """The folder of the server: its data, its log, its sockets."""
        return self._started()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A new psycopg connection in autocommit mode; ``options`` are those of psycopg."""
        import psycopg

        return psycopg.connect(self.url, **{"autocommit": True, **options})

    # Private

    def _make_data(self) -> None:
        """Make the folder of the data: here a new one."""
        initdb = find_program("initdb")
        self._run([initdb, "-U", self.user, "-A", "trust", "-E", "UTF8", "--no-sync"])

    def _launch(self) -> bool:
        """Start the server. False: another process still has the port or the data."""
        folder = self._started()
        settings = {
            "listen_addresses": self.host,
            "port": str(self._port),
            "unix_socket_directories": str(folder),
            "fsync": "on" if self._fsync else "off",
            "timezone": "UTC",
            **self._config,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._guard = Guard(folder)
        log = folder / "log"
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: S603 - the program was looked up by us
                    [str(find_program("postgres")), "-D", str(folder / "data"), *options],
                    user=self._user,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in a terminal must reach only the tests; they stop the server.
                    start_new_session=True,
                )
        except BaseException:
            self._guard.dismiss()
            raise
        self._guard.watch(self._process.pid)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None:
                self._end(signal.SIGKILL)
                text = log.read_text("utf-8", "replace")
                if any(reason in text for reason in _NOT_YET):
                    return False
                raise RuntimeError(f"PostgreSQL did not start. Its output:\n{text.strip()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not answer in {_START_TIMEOUT_S} s")
            time.sleep(_POLL_S)
        return True

    def _answers(self) -> bool:
        command = [str(find_program("pg_isready")), "-q", "-h", self.host, "-p", str(self._port)]
        return subprocess.run(command, check=False).returncode == 0  # noqa: S603 - as above

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    def _run(self, command: list[object]) -> None:
        done = subprocess.run(  # noqa: S603 - the program was looked up by us
            [*map(str, command), "-D", str(self._started() / "data")],
            user=self._user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            name = Path(str(command[0])).name
            raise RuntimeError(f"{name} failed: {done.stderr.strip()}")

    def _started(self) -> Path:
        if self._folder is None:
            raise RuntimeError("this PostgresServer is not started; use it in a with block")
        return self._folder

    def _running(self) -> subprocess.Popen[bytes]:
        self._started()
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("PostgreSQL is not running; restart() starts it again")
        return self._process


def _children(pid: int) -> list[int]:
    listed = subprocess.run(  # noqa: S603 - a constant program
        ["ps", "-o", "pid=", "--ppid", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(word) for word in listed.stdout.split()]
