"""A temporary PgBouncer in transaction mode, in front of a PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from syncguard.testing.free_port import free_port
from syncguard.testing.postgres_programs import unprivileged_user

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server.port} user={server.user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = 10
server_login_retry = 1
logfile = {log}
"""


class PgBouncerUnavailableError(Exception):
    """PgBouncer cannot be started here. The text gives the reason."""


class PgBouncer:
    """Listens during the ``with`` block. A start after ``kill()`` may choose another port."""

    def __init__(self, server):
        self._server = server

    @property
    def url(self):
        return f"postgresql://{self._server.user}@127.0.0.1:{self.port}/{self._server.database}"

    def __enter__(self):
        self._program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if self._program is None:
            raise PgBouncerUnavailableError("pgbouncer is not installed")
        self._user = unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="syncguard-pgbouncer-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc):
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart_if_killed(self):
        # It waits even for one that runs: PostgreSQL may have been restarted.
        if self._process.poll() is not None or not self._wait_until_ready():
            self._start()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def _start(self):
        """Start it on a free port. Another process may bind the port first: then on the next."""
        for _ in range(10):
            self._launch()
            if self._wait_until_ready():
                return
        raise AssertionError(f"pgbouncer does not start: {self._output.read_text()}")

    def _launch(self):
        self.port = free_port()
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(server=self._server, port=self.port, log=self._folder / "log"),
            encoding="utf-8",
        )
        settings.chmod(0o644)
        self._output = self._folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [self._program, "-q", settings],
                user=self._user,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def _wait_until_ready(self):
        """True: it answers. False: it has ended."""
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, autocommit=True).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    return False
                assert time.monotonic() < deadline, "pgbouncer does not answer"
                time.sleep(0.02)
            else:
                return True
