"""asyncio: a connection that another task closes during a call is a fault, as every lost one.

redis-py and asyncio then use what is None already, and raise errors that look like mistakes in the
code: AttributeError for the writer of redis-py, and TypeError in ``writelines`` of Python 3.12 and
3.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis


@contextlib.contextmanager
def closed_is_a_fault() -> Iterator[None]:
    """Raise ConnectionError if the block fails because its connection was closed meanwhile."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if not _uses_none(error):
            raise
        raise redis.ConnectionError("the connection was closed during the call") from error


def _uses_none(error: AttributeError | TypeError) -> bool:
    if isinstance(error, AttributeError):
        return error.obj is None
    return str(error) == "'NoneType' object is not callable"
