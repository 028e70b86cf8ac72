"""Backends whose client is redis-py's default one, closed together with the backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from syncguard.redis import RedisBackend


@contextmanager
def backend_on(port: int, **client_options: object) -> Iterator[RedisBackend]:
    """A backend on the server at this port; the options are those of ``redis.Redis``."""
    with redis.Redis(port=port, **client_options) as client:  # type: ignore[arg-type]
        with RedisBackend(client) as backend:
            yield backend
