"""Text that prints without what is secret in it.

Debug pages and tracebacks print settings and local variables with ``repr``.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_MASK: Final = "********"


class Secret(str):
    """A password: a ``str`` that shows nothing of itself when it is printed with ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(_MASK)


class RedactedUrl(str):
    """A URL that a user wrote: a ``str`` whose ``repr`` leaves out credentials and the query.

    A URL that is not clear to the last character is not shown at all: a password that has a slash
    in it is a part of the path.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        try:
            return repr(_without_credentials(self))
        except ValueError:
            return repr(_MASK)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if not parts.scheme or parts.fragment or "://" not in url:
        raise ValueError
    if not parts.netloc:  # a file, such as a socket
        if not parts.path or "@" in parts.path:
            raise ValueError
        return f"{parts.scheme}://{parts.path}"
    number = parts.path.strip("/")
    if not parts.hostname or not (number == "" or number.isdecimal()):
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path}"
