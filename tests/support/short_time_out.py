"""A call that times out soon, on a client whose other calls may take long on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport import runner
from syncguard.testing import BlockingFacade

TIMEOUT_S = 0.2


@contextmanager
def short_time_out(backend: RedisBackend | AsyncRedisBackend | BlockingFacade) -> Iterator[None]:
    """The open connection of the backend has a short time-out in this block, and then no more.

    For a block in which the server does not answer. Every other connection, also one that replaces
    this one, has the time-out of the client.
    """
    inner = backend._backend if isinstance(backend, BlockingFacade) else backend
    if isinstance(inner, AsyncRedisBackend):
        [pipelined] = inner._runner._connections.values()  # type: ignore[attr-defined]
        # Without a timer of an earlier call, which the next call would use.
        with mock.patch.multiple(pipelined, _timeout_s=TIMEOUT_S, _timer=None):
            yield
        return
    [(connection, _)] = inner._runner._spare  # type: ignore[attr-defined]
    sock = connection._sock
    before = sock.gettimeout()
    sock.settimeout(TIMEOUT_S)
    # However long the machine stalls now, this connection is used, and its pool does not check it.
    with mock.patch.object(runner, "FRESH_FOR_S", 3600):
        yield
    if connection._sock is sock:
        sock.settimeout(before)
