"""A temporary MariaDB for the tests, if its programs and a driver are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UnavailableError(Exception):
    """MariaDB cannot be started here. The text gives the reason."""


@contextmanager
def mariadb_server() -> Iterator[dict[str, object]]:
    """A running server. Yields Django's settings for its database."""
    install, server = _program("mariadb-install-db"), _program("mariadbd")
    _use_pymysql()
    user = pwd.getpwuid(os.geteuid()).pw_name
    folder = Path(tempfile.mkdtemp(prefix="syncguard-mariadb-"))
    data, path, temporary = folder / "data", folder / "socket", folder / "temporary"
    try:
        temporary.mkdir()
        # In a temporary folder that they share, two servers would delete files of each other.
        options = [
            *("--no-defaults", f"--datadir={data}", f"--tmpdir={temporary}", f"--user={user}")
        ]
        _run([install, *options, "--auth-root-authentication-method=normal"])
        process = subprocess.Popen(
            [
                *(server, *options, "--skip-networking", f"--socket={path}"),
                *(f"--pid-file={folder}/pid", "--innodb-flush-log-at-trx-commit=0"),
                *("--innodb-buffer-pool-size=32M", "--skip-log-bin"),
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until_ready(path)
            # Every installation has an empty database of this name.
            yield {"HOST": str(path), "USER": "root", "NAME": "test"}
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(path: Path) -> None:
    # PyMySQL does not close its socket when it cannot connect.
    deadline = time.monotonic() + 60
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                return client.connect(str(path))
            except OSError:
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.05)


def _use_pymysql() -> None:
    # Django needs mysqlclient, which has to be compiled. PyMySQL replaces it here.
    try:
        import pymysql
    except ImportError:
        raise UnavailableError("PyMySQL is not installed") from None
    pymysql.install_as_MySQLdb()


def _program(name: str) -> str:
    # Debian installs servers in a folder that is not on every user's PATH.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise UnavailableError(f"MariaDB is not installed: no {name} was found")
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        # Not an UnavailableError: that would skip the tests on a server that is installed.
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
