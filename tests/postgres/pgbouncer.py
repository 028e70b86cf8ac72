"""A temporary PgBouncer in transaction mode, in front of a PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from syncguard.testing.postgres_programs import unprivileged_user


class PgBouncerUnavailableError(Exception):
    """PgBouncer cannot be started here. The text gives the reason."""


class PgBouncer:
    """Listens on its own port during the ``with`` block."""

    def __init__(self, server):
        self._server = server

    @property
    def url(self):
        return f"postgresql://{self._server.user}@127.0.0.1:{self.port}/{self._server.database}"

    def __enter__(self):
        program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise PgBouncerUnavailableError("pgbouncer is not installed")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._user = unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix="syncguard-pgbouncer-"))
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            f"""
[databases]
* = host=127.0.0.1 port={self._server.port} user={self._server.user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 200
default_pool_size = 10
server_login_retry = 1
logfile = {self._folder}/log
"""
        )
        if self._user is not None:
            shutil.chown(self._folder, self._user)
            shutil.chown(settings, self._user)
        self._command = [program, "-q", settings]
        self._start()
        return self

    def _start(self):
        self._process = subprocess.Popen(
            self._command,
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise

    def restart_if_killed(self):
        if self._process.poll() is None:
            self._wait_until_ready()  # PostgreSQL may have been restarted
        else:
            self._start()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_exc):
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_until_ready(self):
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, autocommit=True).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "pgbouncer has ended"
                assert time.monotonic() < deadline, "pgbouncer does not answer"
                time.sleep(0.02)
