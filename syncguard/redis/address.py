"""The address of a Redis database, and its parser.

No settings, no client, no I/O. The repr and str of an address never contain the password.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final, Literal, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from syncguard.redacted_text import Secret

DEFAULT_PORT: Final = 6379
Scheme = Literal["redis", "rediss", "unix"]
_SCHEMES: Final = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis database."""

    scheme: Scheme
    host: str
    port: int
    path: str
    db: int
    query: str = field(default="", repr=False)
    username: str | None = field(default=None, repr=False)
    password: Secret | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The address for a client, without credentials and database number."""
        query = f"?{self.query}" if self.query else ""
        if self.scheme == "unix":
            return f"unix://{self.path}{query}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{query}"

    def without(self, options: Iterable[str]) -> Address:
        """The address without these options in its query, because they are passed separately."""
        given = set(options)
        kept = [pair for pair in parse_qsl(self.query, True) if pair[0] not in given]
        return replace(self, query=urlencode(kept))

    @property
    def options_in_query(self) -> frozenset[str]:
        return frozenset(name for name, _ in parse_qsl(self.query, True))

    @property
    def server(self) -> tuple[str, int]:
        """Equal for two addresses of one server, if host names are enough to know that."""
        return (self.path, 0) if self.scheme == "unix" else (canonical_host(self.host), self.port)

    @property
    def uses_tls(self) -> bool:
        return self.scheme == "rediss"

    @property
    def is_remote(self) -> bool:
        return self.scheme != "unix" and canonical_host(self.host) != "localhost"

    def __str__(self) -> str:
        """The address to display: no credentials, and no query, which may contain credentials."""
        bare = self.url.partition("?")[0]
        return f"{bare}?db={self.db}" if self.scheme == "unix" else f"{bare}/{self.db}"


def parse(location: str) -> Address:
    """Parse an address. Raises ValueError, without text, if it is not valid.

    Without text, because the standard library's texts quote a part of the URL, and that part can
    belong to a password that contains a slash.
    """
    try:
        return _parse(location)
    except ValueError:
        raise ValueError from None


def _parse(location: str) -> Address:
    parts = urlsplit(location)
    if parts.scheme not in _SCHEMES or parts.fragment:
        raise ValueError
    scheme = cast("Scheme", parts.scheme)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    username = query.pop("username", None) or (unquote(parts.username or "") or None)
    password = query.pop("password", None) or (unquote(parts.password or "") or None)
    path = unquote(parts.path)
    if scheme == "unix" and not path:
        raise ValueError
    named = "0" if scheme == "unix" else path.strip("/") or "0"
    return Address(
        scheme=scheme,
        host=unquote(parts.hostname or "localhost"),
        port=parts.port or DEFAULT_PORT,
        path=path if scheme == "unix" else "",
        db=int(query.pop("db", named)),
        query=urlencode(query),
        username=username,
        password=None if password is None else Secret(password),
    )


def canonical_host(host: str) -> str:
    """The host in the form in which two names of this machine are equal."""
    host = host.lower().rstrip(".")
    try:
        return "localhost" if ip_address(host).is_loopback else host
    except ValueError:
        return host
