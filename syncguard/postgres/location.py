"""Reads and checks the settings of a project that stores its locks in PostgreSQL. No I/O.

No text contains a value of a setting: it may be a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from syncguard._backend.settings import Finding, GivenLocation, Location, SettingProblem
from syncguard._sql.table_names import problem_of_tables
from syncguard.errors import InvalidArgument
from syncguard.postgres.address import Address
from syncguard.redacted_text import RedactedUrl, Secret

_OWN_OPTIONS: Final = frozenset(
    {
        "cleanup_in_is_locked",
        "dispose_timeout_ms",
        "fences_table",
        "listen_url",
        "locks_table",
        "max_connections",
        "on_release_error",
        "timeout_ms",
    }
)
_PARAMETERS: Final = {
    "HOST": "host",
    "PORT": "port",
    "NAME": "dbname",
    "USER": "user",
    "PASSWORD": "password",
}
_DJANGO_ONLY: Final = frozenset(
    {
        *("assume_role", "isolation_level", "pool", "server_side_binding"),
        *("autocommit", "connection_factory", "context", "cursor_factory", "prepare_threshold"),
        "row_factory",
    }
)
"""OPTIONS of Django's database backend, and of its driver, that are no connection parameters."""

_QUICK_MS: Final = 2_000
_NO_URL: Final = (
    "must be a URL such as postgresql://[username[:password]@]host:5432/database; special"
    " characters in a password must be percent-encoded"
)


def read_location(given: GivenLocation) -> Location | SettingProblem:
    """The database that the settings name. Implements ``PostgresBackend.read_location``."""
    if given.cache is not None:
        return SettingProblem("CACHE", "is not supported by this backend: set DATABASE or LOCATION")
    inherited: Mapping[str, object] = {}
    url: object = given.location
    if given.database is not None:
        found = _parameters_of(given.database)
        if isinstance(found, SettingProblem):
            return found
        url, inherited = "postgresql://", found
    options = {**inherited, **given.options}
    password = options.get("password")
    if isinstance(password, str):
        options["password"] = Secret(password)
    connection = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    try:
        address = Address(url, connection)  # type: ignore[arg-type]  # it checks the type
    except InvalidArgument as error:
        if given.database is not None or connection:
            return SettingProblem("OPTIONS", f"cannot be used: {error}")
        return SettingProblem("LOCATION", _NO_URL)
    problem = problem_of_tables(options)
    if problem is not None:
        return problem
    shown = RedactedUrl(url)
    quick = {**options, "timeout_ms": min(_QUICK_MS, _timeout_of(options))}
    return Location(
        shown,
        options,
        store=address.store,
        findings=tuple(_findings(address)),
        quick=Location(shown, quick),
    )


def _parameters_of(entry: object) -> Mapping[str, object] | SettingProblem:
    if not isinstance(entry, Mapping):
        return SettingProblem("DATABASE", "names an entry of DATABASES that is not a dictionary")
    if "postg" not in str(entry.get("ENGINE", "")):
        return SettingProblem("DATABASE", "names an entry of DATABASES that is not PostgreSQL")
    options = entry.get("OPTIONS") or {}
    if not isinstance(options, Mapping):
        return SettingProblem("DATABASE", "names an entry whose OPTIONS is not a dictionary")
    found: dict[str, object] = {
        name: value for name, value in options.items() if name not in _DJANGO_ONLY
    }
    for theirs, ours in _PARAMETERS.items():
        value = entry.get(theirs)
        if value not in (None, ""):
            found[ours] = value if isinstance(value, str) else str(value)
    return found


def _timeout_of(options: Mapping[str, object]) -> int:
    chosen = options.get("timeout_ms")
    return chosen if isinstance(chosen, int) else _QUICK_MS


def _findings(address: Address) -> list[Finding]:
    if address.is_remote and not address.uses_tls:
        return [
            Finding(
                "plaintext",
                "may connect to a remote PostgreSQL without TLS.",
                'Set sslmode to "verify-full", or to "require".',
                in_production=True,
            )
        ]
    return []
