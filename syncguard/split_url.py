"""Splits a URL that may list several hosts: ``redis+cluster://h1:7000,[::1]:7001/0``.

``urlsplit`` of newer Pythons refuses an IPv6 address that is not the first of a list. So it does
not get the hosts.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

_HOSTS: Final = re.compile(r"([^:/?#]*://)([^/?#]*)")

_REMOVED: Final = str.maketrans("", "", "\t\r\n")
"""``urlsplit`` removes these, too."""


def split_url(url: str) -> SplitResult:
    """``urlsplit``, without its checks of the hosts. Raises ValueError."""
    found = _HOSTS.match(url)
    if found is None:
        return urlsplit(url)
    before, hosts = found.groups()
    parts = urlsplit(before + url[found.end() :])
    return parts._replace(netloc=hosts.translate(_REMOVED))
