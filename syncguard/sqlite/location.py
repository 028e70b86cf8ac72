"""From a path or a URL to the file of the locks; the settings of a project. No I/O on the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from syncguard._backend.settings import Finding, GivenLocation, Location, SettingProblem
from syncguard._sql.table_names import problem_of_tables
from syncguard.errors import LockError, invalid_argument
from syncguard.sqlite.file_system import file_system_of, is_network

SCHEME: Final = "sqlite"
QUICK_TIMEOUT_MS: Final = 1_000
"""How long a web page waits for a busy file."""

_URL: Final = (
    "a URL of a SQLite file looks like sqlite:///locks.sqlite3, or, with an absolute path,"
    " sqlite:////var/lib/shop/locks.sqlite3: four slashes"
)
_PATH: Final = (
    'must be a path, such as BASE_DIR / "locks.sqlite3", or a URL such as'
    " sqlite:////var/lib/shop/locks.sqlite3"
)


def checked_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a file. Raises InvalidArgument.

    Absolute, because a process may change its directory later: it would then lock in another file.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise invalid_argument("a SQLite backend takes the path of a file")
    if text.startswith((":memory:", "file:")):
        raise invalid_argument(
            "locks need a file that all processes share: for locks in memory, use"
            " syncguard.memory.MemoryBackend"
        )
    if "://" in text:
        raise invalid_argument("this is a URL, not a path: use from_url")
    if "\0" in text or text.endswith(("/", os.sep)):
        raise invalid_argument("a SQLite backend takes the path of a file, not of a directory")
    return os.path.abspath(text)


def path_of_url(url: str) -> str:
    """The absolute path that a URL names. Raises InvalidArgument."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme != SCHEME or parts.netloc or not parts.path[1:]:
        raise invalid_argument(_URL)
    if parts.query or parts.fragment:
        raise invalid_argument(
            "a URL of a SQLite file has no options; a ? or # in the path is written as %3F or %23"
        )
    # As in SQLAlchemy and dj-database-url: the third slash only separates.
    return checked_path(unquote(parts.path[1:]))


def url_of(path: str) -> str:
    """The URL of an absolute path."""
    return f"{SCHEME}:///{quote(path)}"


def read_location(given: GivenLocation) -> Location | SettingProblem:
    """Read the settings of a project: a path or a URL."""
    if given.cache is not None:
        return SettingProblem("CACHE", "is not supported by this backend: give a LOCATION")
    if given.database is not None:
        return SettingProblem("DATABASE", "is not supported by this backend: give a LOCATION")
    location = given.location
    try:
        if isinstance(location, str) and "://" in location:
            path = path_of_url(location)
        else:
            path = checked_path(location)  # type: ignore[arg-type]
    except LockError:
        return SettingProblem("LOCATION", _PATH)
    problem = problem_of_tables(given.options)
    if problem is not None:
        return problem
    patience = given.options.get("timeout_ms")
    quick_ms = min(patience, QUICK_TIMEOUT_MS) if type(patience) is int else QUICK_TIMEOUT_MS
    return Location(
        url_of(path),
        given.options,
        store=(SCHEME, os.path.realpath(path)),
        findings=tuple(_findings(location, path)),
        quick=Location(url_of(path), {**given.options, "timeout_ms": quick_ms}),
    )


def _findings(location: object, path: str) -> Iterator[Finding]:
    if not _is_absolute(location):
        yield Finding(
            "other",
            "has a LOCATION that is relative to the current directory: processes that were started"
            " in different directories use different files, and do not exclude each other.",
            'Use an absolute path, such as BASE_DIR / "locks.sqlite3".',
        )
    file_system = file_system_of(os.path.dirname(path))
    if is_network(file_system):
        yield Finding(
            "other",
            f"keeps its SQLite file on a network file system ({file_system}): there, locks do not"
            " exclude the processes of other machines, and the file can be damaged.",
            "Use a local disk, or a backend with a server.",
        )


def _is_absolute(location: object) -> bool:
    if isinstance(location, str) and "://" in location:
        return urlsplit(location).path.startswith("//")
    return os.path.isabs(location)  # type: ignore[arg-type]
