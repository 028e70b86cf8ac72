"""A temporary PostgreSQL for the tests, if its programs are installed.

PostgreSQL refuses to run as root; then the server runs as another user, if there is one.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UnavailableError(Exception):
    """PostgreSQL cannot be started here. The text gives the reason."""


@contextmanager
def postgres_server() -> Iterator[dict[str, str]]:
    """A running server. Yields Django's settings for its database."""
    initdb, postgres = _program("initdb"), _program("postgres")
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="syncguard-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        _run([initdb, "-D", folder / "data", "-U", "tests", "-A", "trust", "--no-sync"], user)
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "timezone": "UTC",
        }
        settings = [f"--{name}={value}" for name, value in options.items()]
        process = subprocess.Popen(
            [postgres, "-D", folder / "data", *settings],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield {"HOST": str(folder), "USER": "tests", "NAME": "postgres"}
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    # Debian installs them outside of the PATH, in one folder for each version.
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise UnavailableError(f"PostgreSQL is not installed: no {name} was found")
    return found


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise UnavailableError("PostgreSQL does not run as root, and there is no other user")


def _run(command: list[object], user: str | None) -> None:
    done = subprocess.run(
        list(map(str, command)), user=user, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError(f"{Path(str(command[0])).name} failed: {done.stderr.strip()}")
