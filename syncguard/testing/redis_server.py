"""A private redis-server for tests: start, kill, pause, restart and stop it through one object.

This module owns what stays the same from start to stop: the folder, the port, the configuration.
``redis_server_process`` owns one running process, ``redis_server_path`` finds the program,
``redis_server_control`` sends commands to it, and ``server_orphans`` kills it if the process
that started it dies.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from syncguard.testing.free_port import free_port
from syncguard.testing.redis_server_control import Control
from syncguard.testing.redis_server_path import find_redis_server
from syncguard.testing.redis_server_process import POLL_S, PortTakenError, ServerProcess

if TYPE_CHECKING:
    import redis
    from typing_extensions import Self

_PORT_ATTEMPTS: Final = 10
_PORT_TIMEOUT_S: Final = 10.0


class RedisServer:
    """A temporary redis-server on a free loopback port, with its data in a temporary folder.

    ::

        with RedisServer(aof=True) as server:
            client = server.client()
            server.kill()           # SIGKILL
            server.restart()        # same port, same data
            with server.paused():   # SIGSTOP ... SIGCONT
                ...

    ``aof`` writes every change to disk before Redis answers; without it a restart loses all data.
    ``config`` takes further lines of redis.conf, such as ``"maxmemory-policy noeviction"``.

    The server ends when the process that started it ends, also when that process is killed. A
    forked child can connect to the server but not signal it, and ``stop()`` does nothing there.
    """

    host: Final = "127.0.0.1"

    def __init__(
        self, *, aof: bool = False, config: Iterable[str] = (), password: str | None = None
    ) -> None:
        if isinstance(config, str):
            raise TypeError("config takes a list of configuration lines, not one string")
        self._aof = aof
        self._config = tuple(config)
        self._password = password
        self._folder: Path | None = None
        self._port = 0
        self._process: ServerProcess | None = None

    def __repr__(self) -> str:
        where = f"{self.host}:{self._port}" if self._folder else "not started"
        return f"<RedisServer {where}>"

    # Start and stop

    def start(self) -> None:
        """Start without data, and return when the server answers."""
        if self._folder is not None:
            raise RuntimeError("this RedisServer is already started; restart() starts it again")
        program = find_redis_server()
        self._folder = Path(tempfile.mkdtemp(prefix="syncguard-redis-"))
        try:
            for _ in range(_PORT_ATTEMPTS):
                self._port = free_port()
                with contextlib.suppress(PortTakenError):
                    return self._launch(program)
            raise RuntimeError(f"no free port for redis-server in {_PORT_ATTEMPTS} attempts")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server in any state, and remove its data. Can be called again."""
        if self._process is not None:
            if not self._process.is_ours:
                return
            # No graceful shutdown: its data is deleted anyway, and it takes up to 100 ms.
            self._process.kill()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def restart(self) -> None:
        """Start again on the same port and folder, after kill() or after a graceful shutdown.

        Data is kept only with ``aof=True`` or a ``save`` line.
        """
        self._started()
        program = find_redis_server()
        if self._process is not None:
            self._require_ours(self._process)
            self._process.shut_down()
        # This server used the port until now. If another process has it, that may end soon.
        deadline = time.monotonic() + _PORT_TIMEOUT_S
        while True:
            try:
                return self._launch(program)
            except PortTakenError as taken:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"another process now uses port {self._port}") from taken
                time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL: the server saves nothing and closes no connection properly."""
        self._running().kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and the kernel accepts new ones, but no reply comes."""
        self._running().pause()

    def resume(self) -> None:
        """SIGCONT: the server now answers requests of the pause. Does nothing if not paused."""
        if self.is_running:
            self._running().resume()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the server during the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

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
        """Whether the server process exists, paused or not, and this process may signal it."""
        return self._process is not None and self._process.is_alive

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
        """The address as redis-py, Django and Celery take it; includes the password."""
        credentials = "" if self._password is None else f":{quote(self._password, safe='')}@"
        return f"redis://{credentials}{self.host}:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """A new redis-py client for this server; ``options`` are those of ``redis.Redis``."""
        import redis

        # redis-py types each option; we pass them through without checks.
        make: Callable[..., redis.Redis] = redis.Redis
        return make(**{"host": self.host, "port": self.port, "password": self._password, **options})

    def commands_processed(self) -> dict[str, int]:
        """How often each command reached the server since it started, without those of this class.

        Counts rejected commands too, and those that a script called. If two results are equal, no
        command reached the server in between.
        """
        return self._running().control.foreign_calls()

    # Private

    def _launch(self, program: Path) -> None:
        settings = self._started() / "redis.conf"
        settings.write_text(self._settings(), encoding="utf-8")
        control = Control(self.host, self._port, self._password)
        process = ServerProcess(program, settings, control)
        try:
            process.wait_until_ready()
        except BaseException:
            process.kill()
            raise
        self._process = process

    def _settings(self) -> str:
        lines = [
            f"bind {self.host}",
            f"port {self._port}",
            "daemonize no",
            'save ""',
            f"appendonly {'yes' if self._aof else 'no'}",
            "appendfsync always",
        ]
        if self._password is not None:
            lines.append(f"requirepass {_quoted(self._password)}")
        return "\n".join([*lines, *self._config, ""])

    def _started(self) -> Path:
        if self._folder is None:
            raise RuntimeError("this RedisServer is not started; use it in a with block")
        return self._folder

    def _running(self) -> ServerProcess:
        self._started()
        if self._process is not None:
            self._require_ours(self._process)
            if self._process.is_alive:
                return self._process
        raise RuntimeError("redis-server is not running; restart() starts it again")

    @staticmethod
    def _require_ours(process: ServerProcess) -> None:
        if not process.is_ours:
            raise RuntimeError("this RedisServer belongs to the process that started it")


def _quoted(value: str) -> str:
    """The value quoted for redis.conf, with every byte escaped."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in value.encode()) + '"'
