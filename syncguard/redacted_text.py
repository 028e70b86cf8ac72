"""Strings whose ``repr`` hides secrets.

Debug pages and tracebacks print settings and local variables with ``repr``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from syncguard.split_url import split_url

_MASK: Final = "********"


class Secret(str):
    """A password: a ``str`` whose ``repr`` is only a mask."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_MASK)


class RedactedUrl(str):
    """A URL from a user: a ``str`` whose ``repr`` omits credentials and the query.

    A URL with any unclear part is masked completely: a password with a slash in it is parsed as a
    part of the path.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            return repr(_without_credentials(self))
        except ValueError:
            return repr(_MASK)


def _without_credentials(url: str) -> str:
    parts = split_url(url)
    if not parts.scheme or parts.fragment or "://" not in url:
        raise ValueError
    if not parts.netloc:  # a file, such as a socket
        if not parts.path or "@" in parts.path:
            raise ValueError
        return f"{parts.scheme}://{parts.path}"
    _, _, hosts = parts.netloc.rpartition("@")
    if "@" in parts.path or "@" in parts.query:
        raise ValueError
    shown = ",".join(_checked_host(host) for host in hosts.split(","))
    number = parts.path.strip("/")
    path = parts.path if number == "" or number.isdecimal() else f"/{_MASK}"
    return f"{parts.scheme}://{shown}{path}"


def _checked_host(text: str) -> str:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.username is not None:
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return host if parts.port is None else f"{host}:{parts.port}"
