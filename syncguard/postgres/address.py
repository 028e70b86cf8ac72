"""The address of a database: its connection parameters, without I/O.

The repr and str of an address never contain the password or the query of a URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncguard.errors import invalid_argument

SCHEMES: Final = ("postgresql", "postgres")
_LISTS: Final = ("host", "hostaddr", "port")
_ALWAYS: Final = {"client_encoding": "UTF8"}
_DEFAULTS: Final = {"fallback_application_name": "syncguard"}
_NOT_A_URL: Final = (
    "could not read the address of a PostgreSQL database: a URL looks like"
    " postgresql://[[username]:[password]@]host:5432/database"
)


class Address:
    """The parameters of a connection, and one connection string for each server of a list."""

    def __init__(self, url: str, options: Mapping[str, object] | None = None) -> None:
        if not isinstance(url, str) or url.partition("://")[0].lower() not in SCHEMES:
            raise invalid_argument(_NOT_A_URL)
        given = {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in (options or {}).items()
            if value is not None
        }
        for name, value in given.items():
            if not isinstance(value, str | int):
                raise invalid_argument(
                    f"the connection option {name} must be a str or an int,"
                    f" not {type(value).__name__}"
                )
        try:
            parsed = conninfo_to_dict(url)
        except psycopg.Error:
            # "from None": libpq's text can quote a part of the URL, and so of the password.
            raise invalid_argument(_NOT_A_URL) from None
        ports, database = str(parsed.get("port") or ""), str(parsed.get("dbname") or "")
        hosts = str(parsed.get("host") or "")
        if (
            any(port and not port.isdigit() for port in ports.split(","))
            or "@" in database
            or any("@" in host[1:] for host in hosts.split(","))  # "@name" is an abstract socket
        ):
            # Most likely parts of a password that is not percent-encoded; errors name all three.
            raise invalid_argument(_NOT_A_URL)
        merged: dict[str, object] = {**_DEFAULTS, **parsed, **given, **_ALWAYS}
        try:
            make_conninfo("", **merged)  # type: ignore[arg-type]  # checked above
        except psycopg.Error:
            names = ", ".join(sorted(given))
            raise invalid_argument(f"libpq does not know one of the options {names}") from None
        self.connect_timeout_s: Final = _seconds(merged.pop("connect_timeout", None))
        self._parameters: Final = {name: str(value) for name, value in merged.items()}

    @cached_property
    def conninfos(self) -> tuple[bytes, ...]:
        """One connection string for each server, in the order of the list.

        Of several servers, only one that accepts writes, unless ``target_session_attrs`` is given.
        """
        lists = {name: self._parameters.get(name, "").split(",") for name in _LISTS}
        count = max(len(lists["host"]), len(lists["hostaddr"]))
        # Of several servers, most are standbys, which cannot store locks. One that was demoted
        # still accepts connections.
        defaults = {"target_session_attrs": "read-write"} if count > 1 else {}
        single = {n: v for n, v in self._parameters.items() if n not in _LISTS}
        made = []
        for nth in range(count):
            own = {n: (v[nth] if nth < len(v) else v[0]) for n, v in lists.items()}
            own = {name: value for name, value in own.items() if value}
            made.append(make_conninfo("", **{**defaults, **single, **own}).encode())
        return tuple(made)

    @property
    def store(self) -> tuple[str, ...]:
        """Equal for two addresses of one database, as far as the names show."""
        return tuple(self._parameters.get(name, "") for name in ("host", "port", "dbname"))

    @property
    def is_remote(self) -> bool:
        hosts = self._parameters.get("hostaddr") or self._parameters.get("host") or ""
        return any(not _is_local(host) for host in hosts.split(","))

    @property
    def uses_tls(self) -> bool:
        """Whether TLS is required. libpq's default uses it only if the server has it."""
        return self._parameters.get("sslmode") in ("require", "verify-ca", "verify-full")

    def __str__(self) -> str:
        host = self._parameters.get("host") or self._parameters.get("hostaddr") or "localhost"
        port = self._parameters.get("port") or "5432"
        return f"{host}:{port}/{self._parameters.get('dbname', '')}"

    def __repr__(self) -> str:
        return f"<Address {self}>"


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _seconds(value: object) -> float | None:
    try:
        seconds = float(str(value)) if value is not None else 0.0
    except ValueError:
        raise invalid_argument("connect_timeout must be a number of seconds") from None
    return seconds if seconds > 0 else None
