"""A reply that arrives after the TTL of its lock, without a test that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from syncguard.clock import holder_clock_ms
from syncguard.redis import redis_backend, redis_backend_async

_HOUR_MS = 3_600_000


@contextmanager
def late_reply(after_ms: float = _HOUR_MS) -> Iterator[None]:
    """So much time passes between the first acquire or adopt in the block and its reply.

    It passes on the clock of the Redis backends only, which is right again for the next request.
    """
    sent_at_ms = holder_clock_ms()
    readings_ms = iter([sent_at_ms, sent_at_ms + after_ms])

    def clock_ms() -> float:
        reading_ms = next(readings_ms, None)
        return holder_clock_ms() if reading_ms is None else reading_ms

    with (
        mock.patch.object(redis_backend, "holder_clock_ms", clock_ms),
        mock.patch.object(redis_backend_async, "holder_clock_ms", clock_ms),
    ):
        yield
