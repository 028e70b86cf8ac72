"""Both kinds of Redis backend behind one blocking face, and a bare client to look behind them."""

from __future__ import annotations

import contextlib
import socket
import threading

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
            settings = {"port": server.port, "retry": Retry(NoBackoff(), 0), **(client or {})}
            made = redis.Redis(**settings)
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


class Wiretap:
    """Stands between a client and its server, and can lose one reply."""

    def __init__(self, server):
        self._target = (server.host, server.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.host = "127.0.0.1"
        self._lose = threading.Event()
        self.lost = threading.Event()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_reply(self):
        """The server carries the next request out, and the client never hears of it."""
        self.lost.clear()
        self._lose.set()

    def close(self):
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._copy, args=(client, server), daemon=True).start()
                threading.Thread(target=self._return, args=(server, client), daemon=True).start()

    def _copy(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def _return(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self._lose.is_set():
                    self._lose.clear()
                    self.lost.set()
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wiretap(syncguard_redis):
    tap = Wiretap(syncguard_redis)
    yield tap
    tap.close()
