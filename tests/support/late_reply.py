"""A reply that arrives after the TTL of its lock, without a test that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from syncguard.clock import holder_clock_ms
from syncguard.redis import redis_backend, redis_backend_async

_HOUR_MS = 3_600_000


@contextmanager
def late_reply() -> Iterator[None]:
    """An hour passes between the first acquire or adopt in the block and its reply.

    It passes on the clock of the Redis backends only, which is right again for the next request.
    """
    passed_ms = iter([0, _HOUR_MS])

    def clock_ms() -> float:
        return holder_clock_ms() + next(passed_ms, 0)

    with (
        mock.patch.object(redis_backend, "holder_clock_ms", clock_ms),
        mock.patch.object(redis_backend_async, "holder_clock_ms", clock_ms),
    ):
        yield
