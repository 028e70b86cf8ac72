"""The options of a Redis client: is each of the right type, and which one is unknown? No I/O.

redis-py takes any value, and fails with a TypeError in the middle of the first request. Its table
of what it reads from a URL says which options are numbers and which are flags. No error here
quotes a value: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from redis import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard.errors import InvalidArgument, invalid_argument

PATIENCE_S: Final = 2.0
"""How long a page or a command waits for Redis."""

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def check_types(options: Mapping[str, object]) -> None:
    """Raise InvalidArgument for the first option whose value cannot be right."""
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
    """The error for an option that redis-py does not know, if that is what it complains of."""
    found = _UNEXPECTED.search(str(error))
    if found is None or found[1] not in options:
        return None
    return invalid_argument(f"the client option {found[1]} is unknown to redis-py")


def impatient_options(timeout_s: float = PATIENCE_S) -> dict[str, object]:
    """Options for a client that somebody waits for in front of a page: one try, and short."""
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
