"""timeout_ms and signal bound the whole of lock(), also on a Redis that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import redis
from clients import backend_on
from redis.backoff import NoBackoff
from redis.retry import Retry
from relay import SlowRelay

from syncguard import Acquisition, LockError, lock
from syncguard.redis import RedisBackend
from syncguard.redis._transport import runner
from syncguard.redis._transport.connections import take

TIMEOUT_MS = 700
SOON_S = 20
"""Far above the time-out of lock(), and below every time-out of the clients used here.

Those of redis-py's default client add up to a minute, because it tries again.
"""

BRIEF = Acquisition(timeout_ms=TIMEOUT_MS)


@contextmanager
def default_client(port):
    with backend_on(port) as backend:
        yield backend


@contextmanager
def patient_client(port):
    with backend_on(port, socket_timeout=60, socket_connect_timeout=60) as backend:
        yield backend


@contextmanager
def client_of_from_url(port):
    patient = "socket_timeout=60&socket_connect_timeout=60"
    with RedisBackend.from_url(f"redis://127.0.0.1:{port}/0?{patient}") as backend:
        yield backend


@contextmanager
def client_that_checks_health(port):
    retry = Retry(NoBackoff(), 5)
    with backend_on(port, health_check_interval=1, socket_timeout=60, retry=retry) as backend:
        yield backend


CLIENTS = [default_client, patient_client, client_of_from_url, client_that_checks_health]


def code_of_failed_lock(backend, **options):
    """The code of the error that ``lock()`` raises, which must take less than ``SOON_S``."""
    began = time.monotonic()
    with pytest.raises(LockError) as caught:
        lock(backend, "k", acquisition=BRIEF, **options).__enter__()
    assert time.monotonic() - began < SOON_S
    return caught.value.code


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("used_before", [True, False], ids=["open connection", "new connection"])
def test_a_redis_that_hangs_does_not_hold_lock_up(frail_redis, client, used_before):
    with client(frail_redis.port) as backend:
        if used_before:
            assert not backend.is_locked("k")
        with frail_redis.paused():
            assert code_of_failed_lock(backend) == "NetworkTimeout"
        with lock(backend, "other"):
            assert backend.is_locked("other")


@pytest.mark.parametrize("client", CLIENTS)
def test_several_threads_get_their_time_out_on_connections_of_the_pool(frail_redis, client):
    with client(frail_redis.port) as backend, ExitStack() as stack:
        for number in range(4):
            stack.enter_context(lock(backend, f"warm {number}"))
        codes = []

        def fail():
            codes.append(code_of_failed_lock(backend))

        threads = [threading.Thread(target=fail) for _ in range(4)]
        with frail_redis.paused():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert codes == ["NetworkTimeout"] * 4


def test_after_a_time_out_the_connection_has_its_own_time_outs_again(frail_redis):
    with backend_on(frail_redis.port, socket_timeout=60) as backend:
        pool = backend._client.connection_pool
        with lock(backend, "k"):
            pass
        backend._runner.close()
        [connection] = pool._available_connections
        assert type(connection) is redis.Connection
        assert connection._sock.gettimeout() == 60
        assert connection.retry is vars(connection)["retry"]
        with frail_redis.paused():
            code_of_failed_lock(backend)
        backend._runner.close()
        assert type(connection) is redis.Connection
        assert (connection._sock, pool._in_use_connections) == (None, set())
        assert backend._client.ping()
        assert connection._sock.gettimeout() == 60


@pytest.fixture
def bound(monkeypatch):
    """The deadlines that connections were bound to."""
    deadlines = []
    original = runner.bind

    def bind(connection, deadline):
        deadlines.append(deadline)
        original(connection, deadline)

    monkeypatch.setattr(runner, "bind", bind)
    # However long the machine stalls, the kept connection is used, and not one of the pool.
    monkeypatch.setattr(runner, "FRESH_FOR_S", 3600)
    return deadlines


def test_a_kept_connection_whose_own_time_out_is_short_enough_gets_no_other(frail_redis, bound):
    """To change the time-out of a socket is a system call, for each lock."""
    with backend_on(frail_redis.port, socket_timeout=30) as backend:
        backend.is_locked("k")
        with lock(backend, "k", acquisition=LONG):
            assert bound == []
        with lock(backend, "k", acquisition=Acquisition(timeout_ms=20_000)):
            assert len(bound) == 1


def test_what_follows_a_kept_connection_that_was_closed_obeys_the_deadline(frail_redis, bound):
    with backend_on(frail_redis.port, socket_timeout=30) as backend:
        backend.is_locked("k")
        with frail_redis.client() as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        with lock(backend, "k", acquisition=LONG):
            assert len(bound) == 1
            [[connection, _]] = backend._runner._spare
            assert type(connection) is redis.Connection
            assert connection._sock.gettimeout() == 30


@contextmanager
def aborted_soon(after_s=0.3):
    """A signal that is set after a moment; checks that the block ends soon after it."""
    signal = threading.Event()
    set_at = []

    def abort():
        set_at.append(time.monotonic())
        signal.set()

    timer = threading.Timer(after_s, abort)
    timer.start()
    try:
        yield signal
        ended = time.monotonic()
    finally:
        timer.join()
    # Below the 60 s of the clients used here, and long enough for a busy machine.
    assert ended - set_at[0] < 20


LONG = Acquisition(timeout_ms=60_000)


@pytest.mark.parametrize("used_before", [True, False], ids=["open connection", "new connection"])
def test_a_signal_aborts_an_attempt_on_a_redis_that_hangs(frail_redis, used_before):
    with patient_client(frail_redis.port) as backend:
        if used_before:
            assert not backend.is_locked("k")
        with frail_redis.paused(), aborted_soon() as signal, pytest.raises(LockError) as caught:
            lock(backend, "k", acquisition=LONG, signal=signal).__enter__()
        assert caught.value.code == "Aborted"


@pytest.fixture
def two_dead_addresses(silent_address, monkeypatch):
    """A host with two addresses, neither of which answers. Returns its port."""
    found = socket.getaddrinfo
    host, port = silent_address

    def twice(name, *args, **options):
        return found(host, *args, **options) * 2 if name == "dead.test" else found(name, *args)

    monkeypatch.setattr(socket, "getaddrinfo", twice)
    return port


def test_all_addresses_of_a_host_share_the_time(two_dead_addresses):
    with backend_on(two_dead_addresses, host="dead.test", socket_connect_timeout=60) as backend:
        assert code_of_failed_lock(backend) == "NetworkTimeout"


def test_a_signal_aborts_connecting(two_dead_addresses):
    with backend_on(two_dead_addresses, host="dead.test", socket_connect_timeout=60) as backend:
        with aborted_soon() as signal, pytest.raises(LockError) as caught:
            lock(backend, "k", acquisition=LONG, signal=signal).__enter__()
        assert caught.value.code == "Aborted"


def test_with_a_signal_a_refused_connection_is_reported():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with backend_on(unused.getsockname()[1], retry=Retry(NoBackoff(), 0)) as backend:
            code = code_of_failed_lock(backend, signal=threading.Event())
    assert code == "ServiceUnavailable"


def test_a_slow_handshake_counts(frail_redis):
    options = {"socket_timeout": 60, "client_name": "slow", "db": 1, "retry": Retry(NoBackoff(), 3)}
    with SlowRelay(frail_redis.port) as relay, backend_on(relay.port, **options) as backend:
        assert code_of_failed_lock(backend) == "NetworkTimeout"


def test_a_pool_that_waits_does_not_hold_lock_up(frail_redis):
    pool = redis.BlockingConnectionPool(port=frail_redis.port, max_connections=1, timeout=60)
    with redis.Redis(connection_pool=pool) as client:
        backend = RedisBackend(client)
        taken = take(pool)
        # Shorter than the wait of the pool, and longer than a busy machine needs to connect.
        with lock(backend, "k", acquisition=Acquisition(timeout_ms=20_000)):
            pool.release(taken)  # for the release, which has no deadline
        assert not backend.is_locked("k")
    pool.disconnect()


def test_a_pool_that_does_not_wait_is_at_its_limit_as_before(frail_redis):
    with backend_on(frail_redis.port, max_connections=1) as backend:
        pool = backend._client.connection_pool
        taken = take(pool)
        with pytest.raises(LockError) as caught:
            backend.acquire("k")
        assert code_of_failed_lock(backend) == caught.value.code
        pool.release(taken)


def test_a_connection_that_the_server_closed_is_replaced(frail_redis):
    with backend_on(frail_redis.port, retry=Retry(NoBackoff(), 0)) as backend:
        assert not backend.is_locked("k")
        backend._runner.close()
        with frail_redis.client() as admin:
            admin.client_kill_filter(_type="normal", skipme=True)
        with lock(backend, "k", acquisition=LONG):
            assert backend.is_locked("k")
