"""The addresses of several Redis servers: the Sentinels of a master, or the nodes of a cluster.

``redis+sentinel://user:pw@h1:26379,h2:26379/master/0`` and ``redis+cluster://user:pw@h1:7000,h2``,
each also with ``rediss`` for TLS. Only the parser: no settings, no client, no I/O. The repr and
str of a group never contain the password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from syncguard.redacted_text import Secret
from syncguard.redis.address import DEFAULT_PORT, canonical_host
from syncguard.split_url import split_url

SENTINEL_PORT: Final = 26379
GroupKind = Literal["sentinel", "cluster"]

GROUP_FORMS: Final = (
    "redis+sentinel://[[username]:[password]@]host:26379,host:26379/master/0 or"
    " redis+cluster://[[username]:[password]@]host:6379,host:6379"
)

_SCHEMES: Final[dict[str, tuple[GroupKind, bool]]] = {
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_MASTER_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
"""The characters that sentinel.conf allows."""


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Several servers that store the locks together."""

    kind: GroupKind
    hosts: tuple[tuple[str, int], ...]
    """The Sentinels, or some nodes of the cluster."""
    master: str = ""
    db: int = 0
    uses_tls: bool = False
    query: str = field(default="", repr=False)
    username: str | None = field(default=None, repr=False)
    password: Secret | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The address for ``from_url``, without credentials and database number."""
        query = f"?{self.query}" if self.query else ""
        return f"{self._bare_url}{query}"

    @property
    def _bare_url(self) -> str:
        scheme = f"{'rediss' if self.uses_tls else 'redis'}+{self.kind}"
        master = f"/{self.master}" if self.master else ""
        return f"{scheme}://{host_names(self.hosts, ',')}{master}"

    def without(self, options: Iterable[str]) -> ServerGroup:
        """The address without these options in its query, because they are passed separately."""
        given = set(options)
        kept = [pair for pair in parse_qsl(self.query, True) if pair[0] not in given]
        return replace(self, query=urlencode(kept))

    @property
    def options_in_query(self) -> frozenset[str]:
        return frozenset(name for name, _ in parse_qsl(self.query, True))

    @property
    def server(self) -> tuple[object, ...]:
        """Equal for two addresses with the same hosts, whatever their order."""
        hosts = sorted({(canonical_host(host), port) for host, port in self.hosts})
        return (self.kind, self.master, *hosts)

    @property
    def is_remote(self) -> bool:
        return any(canonical_host(host) != "localhost" for host, _ in self.hosts)

    def __str__(self) -> str:
        """The address to display: no credentials, and no query, which may contain credentials."""
        return f"{self._bare_url}/{self.db}" if self.kind == "sentinel" else self._bare_url


def is_group_url(url: object) -> bool:
    """Whether the URL has one of the schemes of this module."""
    return isinstance(url, str) and url.partition("://")[0].lower() in _SCHEMES


def is_master_name(name: object) -> bool:
    return isinstance(name, str) and _MASTER_NAME.fullmatch(name) is not None


def host_names(hosts: Iterable[tuple[str, int]], separator: str = ", ") -> str:
    """The hosts as text, such as ``h1:26379, h2:26379``."""
    return separator.join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts)


def parse_group(location: str) -> ServerGroup:
    """Parse an address. Raises ValueError, without text, if it is not valid.

    Without text, because a part of the URL may belong to a password that contains a slash.
    """
    try:
        return _parse(location)
    except ValueError:
        raise ValueError from None


def parse_hosts(texts: Sequence[str], default_port: int) -> tuple[tuple[str, int], ...]:
    """Parse ``host`` and ``host:port``. Raises ValueError, without text."""
    return tuple(_host(text, default_port) for text in texts)


def _parse(location: str) -> ServerGroup:
    parts = split_url(location)
    if parts.scheme not in _SCHEMES or parts.fragment or "@" in parts.path:
        raise ValueError
    kind, uses_tls = _SCHEMES[parts.scheme]
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    username = query.pop("username", "") or unquote(username)
    password = query.pop("password", "") or unquote(password)
    master, db = _path(kind, unquote(parts.path))
    default_port = SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT
    return ServerGroup(
        kind=kind,
        hosts=parse_hosts(hosts.split(","), default_port),
        master=master,
        db=int(query.pop("db", db)),
        uses_tls=uses_tls,
        query=urlencode(query),
        username=username or None,
        password=Secret(password) if password else None,
    )


def _path(kind: GroupKind, path: str) -> tuple[str, str]:
    """The name of the master, and the database number as text."""
    names = [name for name in path.split("/") if name]
    if kind == "cluster":
        if len(names) > 1:
            raise ValueError
        return "", (names or ["0"])[0]
    if len(names) not in (1, 2) or not is_master_name(names[0]):
        raise ValueError
    return names[0], (names[1:] or ["0"])[0]


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.netloc != text or "@" in text or "," in text:
        raise ValueError
    return unquote(parts.hostname), parts.port or default_port
