"""Both kinds of Redis backend behind one blocking face, and a bare client to look behind them."""

from __future__ import annotations

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import BlockingFacade, LoopThread


@pytest.fixture
def client(syncguard_redis):
    """A client of the test's own: what it does is no backend's doing."""
    with syncguard_redis.client(decode_responses=True) as connected:
        yield connected


@pytest.fixture(params=["blocking", "asyncio"])
def backend_on(request):
    """Makes a backend on a server; ``client`` in the options goes to the client.

    Without retries: what these tests break stays broken.
    """
    opened = []
    if request.param == "blocking":

        def make(server, *, client=None, **options):
            made = server.client(**{"retry": Retry(NoBackoff(), 0), **(client or {})})
            opened.append(made)
            return RedisBackend(made, **options)

        yield make
        for made in opened:
            made.close()
        return

    with LoopThread() as loop:

        def make_async(server, *, client=None, **options):
            settings = {"port": server.port, "retry": AsyncRetry(NoBackoff(), 0), **(client or {})}
            made = redis.asyncio.Redis(**settings)
            opened.append(made)
            return BlockingFacade(AsyncRedisBackend(made, **options), loop)

        yield make_async
        for made in opened:
            loop.run(made.aclose())


@pytest.fixture
def make_backend(backend_on, syncguard_redis):
    """Makes a backend on the session's Redis."""
    return lambda **options: backend_on(syncguard_redis, **options)


@pytest.fixture
def backend(make_backend):
    return make_backend()
