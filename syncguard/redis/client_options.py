"""Checks the options of a Redis client: each has the right type, and redis-py knows it. No I/O.

redis-py accepts any value, and raises TypeError during the first request. Its table of URL
options defines which options are numbers and which are flags. No error here quotes a value: it
may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from redis import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard.errors import InvalidArgument, invalid_argument

QUICK_TIMEOUT_S: Final = 2.0
"""How long a page or a management command waits for Redis."""

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def check_types(options: Mapping[str, object]) -> None:
    """Raise InvalidArgument for the first option whose value has the wrong type."""
    for name, value in options.items():
        expected = _expected(name)
        if value is None or expected is None:
            continue
        what, kinds = expected
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise invalid_argument(
                f"the client option {name} must be {what}, not {type(value).__name__}"
            )


def unknown_option(error: TypeError, options: Mapping[str, object]) -> InvalidArgument | None:
    """Return an error that names the unknown option, or None if ``error`` has another cause."""
    found = _UNEXPECTED.search(str(error))
    if found is None or found[1] not in options:
        return None
    return invalid_argument(f"the client option {found[1]} is unknown to redis-py")


def impatient_options(timeout_s: float = QUICK_TIMEOUT_S) -> dict[str, object]:
    """Options for a client that serves a page or a command: one attempt, with a short timeout."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }


def _expected(name: str) -> tuple[str, tuple[type, ...]] | None:
    read_by = connection.URL_QUERY_ARGUMENT_PARSERS.get(name)
    if read_by is float:
        return "a number of seconds", (int, float)
    if read_by is int:
        return "a whole number", (int,)
    if read_by is connection.to_bool:
        return "True or False", (bool,)
    return None
