"""Both kinds of Redis backend with one blocking interface, and a client that reads their data."""

from __future__ import annotations

import threading
import time

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from relay import Relay

from syncguard.redis import AsyncRedisBackend, RedisBackend, scripts
from syncguard.testing import BlockingFacade, LoopThread


@pytest.fixture
def client(syncguard_redis):
    """A separate client for the test, which no backend uses."""
    with syncguard_redis.client(decode_responses=True) as connected:
        yield connected


@pytest.fixture(params=["blocking", "asyncio"])
def backend_on(request):
    """Makes a backend on a server; ``client`` in the options goes to the client.

    Without retries: what these tests break stays broken.
    """
    opened = []
    patient = {"socket_timeout": 60}
    if request.param == "blocking":

        def make(server, *, client=None, **options):
            settings = {"port": server.port, "retry": Retry(NoBackoff(), 0)}
            made = redis.Redis(**settings | patient | (client or {}))
            opened.append(made)
            return RedisBackend(made, **options)

        yield make
        for made in opened:
            made.close()
        return

    with LoopThread() as loop:

        def make_async(server, *, client=None, **options):
            settings = {"port": server.port, "retry": AsyncRetry(NoBackoff(), 0)}
            made = redis.asyncio.Redis(**settings | patient | (client or {}))
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


@pytest.fixture
def now(monkeypatch):
    """Sets the time of all scripts, in milliseconds after the moment at which the test begins.

    The scripts run on a real Redis, with another time: about an hour ahead, so that Redis itself
    expires nothing.
    """
    # A multiple of 32: then an acquire removes the entries of expired locks. Never a full second: a
    # script that forgets the microseconds must not be right by chance.
    moment_ms = int(time.time() + 3_600) * 1_000 // 32 * 32 + 15 * 32
    loaded = [(name, s) for name, s in vars(scripts).items() if isinstance(s, scripts.Script)]

    def set_time(after_ms):
        seconds, ms = divmod(moment_ms + after_ms, 1_000)
        reply = f"{{'{seconds}', '{ms * 1_000}'}}"
        for name, script in loaded:
            text = script.text.replace("redis.call('TIME')", reply).replace("call('TIME')", reply)
            monkeypatch.setattr(scripts, name, scripts.Script.of(script.name, text))
        return moment_ms + after_ms

    set_time(0)
    return set_time


class LossyRelay(Relay):
    """A relay that can drop one reply."""

    def __init__(self, port):
        super().__init__(port)
        self._lose = threading.Event()
        self.lost = threading.Event()

    def lose_next_reply(self):
        """Drop the reply to the next request, which the server executes."""
        self.lost.clear()
        self._lose.set()

    def reply(self, data):
        if not self._lose.is_set():
            return data
        self._lose.clear()
        self.lost.set()
        return None


@pytest.fixture
def lossy_relay(syncguard_redis):
    with LossyRelay(syncguard_redis.port) as relay:
        yield relay
