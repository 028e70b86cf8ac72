"""Waiting for a lock: a release wakes, the holder's expiry ends the wait, and so does an abort."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from call_later import call_later
from clients import backend_on
from wait_until import wait_until

from syncguard import Acquired, Acquisition, LockError, NetworkTimeout, lock
from syncguard._lock import acquire_with_retries
from syncguard.backend import Refusal
from syncguard.redis import RedisBackend, script_calls, wake_listener
from syncguard.redis._transport.connections import LARGE_POOL, runner_pool
from syncguard.redis.local_waiters import WakeList
from syncguard.redis.names import Names
from syncguard.redis.undo_thread import undo_thread
from syncguard.redis.waiter import RedisWaiter
from syncguard.redis.wake_listener import pass_on
from syncguard.testing import RedisServer

FAR = Acquisition(timeout_ms=60_000, retry_delay_ms=50_000, jitter="none")
"""A waiter that would sleep for 50 s: if it ends sooner, it was woken."""

NAMES = Names("syncguard").of("k")

WAITERS = LARGE_POOL - 2
"""All of them, the listener and the holder can have a connection of such a pool at once."""


WAKE_TTL = script_calls._WAKE_TTL
"""Of a wake-up, when the fixture of all tests has not changed it."""


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    # Without a socket time-out: another test covers the limit by the client's time-out.
    with backend_on(syncguard_redis.port, socket_timeout=None) as backend:
        yield backend


def refuse(backend: RedisBackend, wait_ms: int) -> None:
    """One refused attempt of a waiter that will wait for this long."""
    call = backend.acquire_call("k", 1_000, None, wait_ms)
    assert isinstance(backend.run_acquire(call, 1_000), Refusal)


def blocked_clients(server: RedisServer) -> int:
    with server.client() as observer:
        return int(observer.info("clients")["blocked_clients"])


def scripts_run(server: RedisServer) -> int:
    return server.commands_processed().get("evalsha", 0)


def test_a_release_wakes_the_waiter(backend: RedisBackend, syncguard_redis: RedisServer) -> None:
    with ThreadPoolExecutor() as pool:
        with lock(backend, "k", ttl_ms=60_000):
            waiter = pool.submit(lambda: lock(backend, "k", acquisition=FAR).__enter__())
            wait_until(lambda: blocked_clients(syncguard_redis) == 1)
        # Not after 50 s: the release woke the waiter.
        held = waiter.result(timeout=20)
        assert backend.release(held.lock_id).ok


def test_one_release_wakes_one_waiter_until_all_have_had_the_lock(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    order: list[str] = []

    def take_turns() -> None:
        with lock(backend, "k", ttl_ms=60_000, acquisition=FAR) as held:
            order.append(held.fence)

    with ThreadPoolExecutor(max_workers=5) as pool:
        with lock(backend, "k", ttl_ms=60_000):
            before = scripts_run(syncguard_redis)
            waiters = [pool.submit(take_turns) for _ in range(5)]
            wait_until(lambda: scripts_run(syncguard_redis) == before + 5)
            wait_until(lambda: blocked_clients(syncguard_redis) == 1)
            before = scripts_run(syncguard_redis)
        for waiter in waiters:
            waiter.result(timeout=20)
        calls = scripts_run(syncguard_redis) - before
    assert order == sorted(order)
    # One release of the first holder, then an acquire and a release each. If every release woke
    # all waiters, there would be 5 + 4 + 3 + 2 + 1 attempts.
    assert calls <= 1 + 5 * 2 + 4


def test_a_waiter_acquires_the_lock_when_the_holder_expires(backend: RedisBackend) -> None:
    """A dead holder wakes nobody, but the waiter need not wait for 50 s either."""
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    assert holder.extend(300)
    with lock(backend, "k", ttl_ms=60_000, acquisition=FAR) as held:
        assert held.fence > holder.fence


def test_a_waiter_does_not_wait_for_its_own_longer_ttl(backend: RedisBackend) -> None:
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    assert holder.extend(200)
    with lock(backend, "k", ttl_ms=600_000, acquisition=FAR):
        pass


def test_an_abort_signal_ends_the_waiting(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    signal = threading.Event()
    with ThreadPoolExecutor() as pool, lock(backend, "k", ttl_ms=60_000):
        waiter = pool.submit(lambda: lock(backend, "k", acquisition=FAR, signal=signal).__enter__())
        wait_until(lambda: blocked_clients(syncguard_redis) == 1)
        signal.set()
        with pytest.raises(LockError) as caught:
            waiter.result(timeout=20)
        assert caught.value.code == "Aborted"
        wait_until(lambda: blocked_clients(syncguard_redis) == 0)


def test_the_signal_is_checked_at_least_every_100_ms(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the waits that it asks for: the machine may pause this process at any time.
    waited_ms = [0.0]
    poll_of = wake_listener.poll_of

    class Signal:
        def is_set(self) -> bool:
            waited_ms.append(0.0)
            return sum(ms > 0 for ms in waited_ms) > 8

    def recording(sock: Any) -> Callable[[float], bool]:
        def poll(timeout_ms: float) -> bool:
            waited_ms[-1] += timeout_ms
            return poll_of(sock)(timeout_ms)

        return poll

    monkeypatch.setattr(wake_listener, "poll_of", recording)
    assert backend.acquire("k", ttl_ms=60_000).ok
    with pytest.raises(LockError, match="aborted"):
        lock(backend, "k", acquisition=FAR, signal=Signal()).__enter__()
    assert max(waited_ms) <= 100


def test_a_plain_acquire_leaves_no_flag_and_its_release_pushes_nothing(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    holder = backend.acquire("k")
    assert holder.ok
    assert not backend.acquire("k").ok
    holder.release()
    assert not observer.exists(NAMES.waiting, NAMES.wake)


def test_a_later_waiter_never_shortens_the_flag(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    assert backend.acquire("k").ok
    refuse(backend, 40_000)
    refuse(backend, 10)
    assert observer.pttl(NAMES.waiting) > 30_000


def test_at_most_one_wake_up_is_pending_and_it_expires(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    for _ in range(3):
        holder = backend.acquire("k")
        assert holder.ok
        refuse(backend, 40_000)
        holder.release()
    assert observer.llen(NAMES.wake) == 1
    assert 0 < observer.pttl(NAMES.wake) <= 600_000
    assert WAKE_TTL == "2000"


def holder_and_waiter(backend: RedisBackend) -> tuple[Acquired, RedisWaiter]:
    """A holder of the lock, and a waiter that was refused."""
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    waiter = backend.open_waiter("k")
    waiter.attempt(1_000, None, 40_000)
    return holder, waiter


def woken(backend: RedisBackend, server: RedisServer) -> RedisWaiter:
    """A waiter that received a wake-up."""
    holder, waiter = holder_and_waiter(backend)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.wait, 40_000, None)
        wait_until(lambda: blocked_clients(server) == 1)
        holder.release()
        assert waiting.result(timeout=20) is True
    return waiter


def test_a_waiter_that_leaves_passes_its_wake_up_on(
    backend: RedisBackend, syncguard_redis: RedisServer, observer: redis.Redis
) -> None:
    waiter = woken(backend, syncguard_redis)
    waiter.close()  # without trying
    wait_until(lambda: observer.llen(NAMES.wake) == 1)


def test_a_waiter_whose_attempt_failed_passes_its_wake_up_on(
    backend: RedisBackend, syncguard_redis: RedisServer, observer: redis.Redis
) -> None:
    waiter = woken(backend, syncguard_redis)
    observer.set(NAMES.fence, "not a number")
    with pytest.raises(LockError):
        waiter.attempt(1_000, None, 40_000)
    waiter.close()
    wait_until(lambda: observer.llen(NAMES.wake) == 1)


def test_a_waiter_that_leaves_passes_on_a_wake_up_that_it_did_not_read(
    backend: RedisBackend, syncguard_redis: RedisServer, observer: redis.Redis
) -> None:
    signal = threading.Event()
    holder, waiter = holder_and_waiter(backend)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.wait, 40_000, signal)
        wait_until(lambda: blocked_clients(syncguard_redis) == 1)
        signal.set()
        with pytest.raises(LockError):
            waiting.result(timeout=20)
    # Its BLPOP still blocks in Redis, and gets the wake-up.
    assert blocked_clients(syncguard_redis) == 1
    holder.release()
    assert blocked_clients(syncguard_redis) == 0
    waiter.close()
    wait_until(lambda: observer.llen(NAMES.wake) == 1)


def leave(backend: RedisBackend) -> None:
    """What a waiter does at its end, if it may have an unused wake-up."""
    pool = runner_pool(backend._client)
    assert pool is not None
    pass_on([WakeList.of(NAMES.wake, backend.pass_on_call("k"))], pool)


def test_a_waiter_that_leaves_a_held_lock_wakes_nobody(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    assert backend.acquire("k").ok
    refuse(backend, 40_000)
    leave(backend)
    assert not observer.exists(NAMES.wake)


def test_the_last_waiter_that_leaves_wakes_nobody(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    leave(backend)
    assert not observer.exists(NAMES.wake)


def test_a_wake_up_is_passed_on_if_the_lock_is_free_and_somebody_waits(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    def is_passed_on() -> bool:
        return backend._runner.run(backend.pass_on_call("k"))

    assert not is_passed_on(), "nobody waits"
    observer.set(NAMES.waiting, "1", px=60_000)
    assert is_passed_on()
    backend.acquire("k", ttl_ms=60_000)
    assert not is_passed_on(), "the lock is held"


def test_a_bell_that_nobody_has_heard_is_not_rung_again(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    def rings() -> bool:
        return backend._runner.run(backend._calls.ring("bell"))

    assert [rings(), rings()] == [True, False]
    assert observer.llen("bell") == 1
    assert 0 < observer.pttl("bell") <= 600_000, "without a listener it expires"
    assert observer.lpop("bell")
    assert rings()


def test_waiters_that_leave_together_pass_one_wake_up_on_and_it_expires(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    observer.set(NAMES.waiting, "1", px=40_000)
    for _ in range(3):
        leave(backend)
    assert observer.llen(NAMES.wake) == 1
    assert 0 < observer.pttl(NAMES.wake) <= 600_000
    assert WAKE_TTL == "2000"


def test_if_the_holder_wakes_nobody_the_waiter_uses_plain_backoff(
    backend: RedisBackend, observer: redis.Redis
) -> None:
    """A client in another language writes the lock, and deletes it without a wake-up."""
    now = int(time.time() * 1000)
    foreign = {
        "lockId": "A" * 22,
        "expiresAtMs": now + 60_000,
        "acquiredAtMs": now,
        "key": "k",
        "fence": "000000000000001",
    }
    observer.set(NAMES.lock, json.dumps(foreign), px=60_000)
    patient = Acquisition(timeout_ms=20_000, max_retries=100)
    with (
        call_later(0.3, lambda: observer.delete(NAMES.lock)),
        lock(backend, "k", acquisition=patient),
    ):
        pass


def test_a_short_socket_timeout_does_not_break_the_waiting(syncguard_redis: RedisServer) -> None:
    port = syncguard_redis.port
    with backend_on(port) as other, backend_on(port, socket_timeout=0.3) as backend:
        for _ in range(10):  # a busy machine may take longer than the time-out for one call
            holder = other.acquire("k", ttl_ms=60_000)
            assert holder.ok
            with (
                contextlib.suppress(NetworkTimeout),
                call_later(1, holder.release),
                lock(backend, "k", acquisition=FAR),
            ):
                return
            wait_until(lambda: undo_thread.pending == 0)
    pytest.fail("a call timed out in every attempt")


def test_waiters_of_all_backends_on_a_pool_share_one_connection(
    syncguard_redis: RedisServer,
) -> None:
    """If each waiter took a connection, the holder could not release."""
    client = redis.Redis(port=syncguard_redis.port, max_connections=LARGE_POOL)
    backends = [RedisBackend(client, key_prefix=f"p{n}") for n in range(2)]
    before = scripts_run(syncguard_redis)

    def take_a_turn(n: int) -> None:
        with lock(backends[n % 2], "k", ttl_ms=60_000, acquisition=FAR):
            pass

    with ThreadPoolExecutor(max_workers=WAITERS) as pool:
        with lock(backends[0], "k", ttl_ms=60_000), lock(backends[1], "k", ttl_ms=60_000):
            waiters = [pool.submit(take_a_turn, n) for n in range(WAITERS)]
            wait_until(lambda: scripts_run(syncguard_redis) >= before + 2 + WAITERS)
            wait_until(lambda: blocked_clients(syncguard_redis) == 1)
        for waiter in waiters:
            waiter.result(timeout=60)
    client.close()


def test_on_a_small_pool_no_waiter_takes_a_connection(syncguard_redis: RedisServer) -> None:
    client = redis.Redis(port=syncguard_redis.port, max_connections=3)
    with RedisBackend(client) as backend, client.pubsub() as listening:
        # The application uses one connection, a releasing thread another.
        listening.subscribe("elsewhere")
        holder = backend.acquire("k", ttl_ms=60_000)
        assert holder.ok
        often = Acquisition(timeout_ms=60_000, retry_delay_ms=30, max_retries=1_000)
        with call_later(0.3, holder.release), lock(backend, "k", acquisition=often):
            assert blocked_clients(syncguard_redis) == 0
    client.close()


def test_backends_that_are_not_closed_leave_no_connection_in_use(
    syncguard_redis: RedisServer,
) -> None:
    client = redis.Redis(port=syncguard_redis.port, max_connections=LARGE_POOL)
    for _ in range(30):
        with RedisBackend(client).lock("k"):
            pass
    client.close()


def test_an_abort_does_not_wait_for_a_redis_that_hangs() -> None:
    signal = threading.Event()
    with (
        RedisServer() as server,
        ThreadPoolExecutor() as pool,
        backend_on(server.port, socket_timeout=None) as backend,
    ):
        assert backend.acquire("k", ttl_ms=60_000).ok
        waiter = pool.submit(lambda: lock(backend, "k", acquisition=FAR, signal=signal).__enter__())
        wait_until(lambda: blocked_clients(server) == 1)
        with server.paused():
            signal.set()
            with pytest.raises(LockError) as caught:
                waiter.result(timeout=20)
        assert caught.value.code == "Aborted"


def test_an_interrupt_at_the_start_of_a_wait_leaves_no_unread_reply(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis.Redis(port=syncguard_redis.port)
    backend = RedisBackend(client)
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    send = redis.connection.AbstractConnection.send_packed_command

    def interrupted(self: object, packed: list[bytes], **options: object) -> None:
        send(self, packed, **options)
        if b"BLPOP" in b"".join(packed):
            raise KeyboardInterrupt

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock(backend, "k", acquisition=FAR).__enter__()
    monkeypatch.undo()
    holder.release()
    assert client.set("a", "1")
    assert client.get("a") == b"1", "the reply to somebody else's BLPOP"
    backend.close()
    client.close()


def test_timeout_ms_ends_the_waiting(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However late the answer comes, it is a refusal, and no time-out of the network.
    monkeypatch.setattr(acquire_with_retries, "MIN_ATTEMPT_MS", 60_000)
    assert backend.acquire("k", ttl_ms=60_000).ok
    with pytest.raises(LockError) as caught:
        lock(
            backend, "k", acquisition=Acquisition(timeout_ms=150, retry_delay_ms=50_000)
        ).__enter__()
    assert caught.value.code == "AcquisitionTimeout"


def test_max_retries_ends_the_waiting(backend: RedisBackend) -> None:
    few = Acquisition(max_retries=3, retry_delay_ms=5, timeout_ms=60_000)
    assert backend.acquire("k", ttl_ms=60_000).ok
    with pytest.raises(LockError) as caught:
        lock(backend, "k", acquisition=few).__enter__()
    assert caught.value.code == "AcquisitionTimeout"


def test_if_redis_dies_during_a_wait_the_error_reports_an_outage() -> None:
    with (
        RedisServer() as server,
        ThreadPoolExecutor() as pool,
        backend_on(server.port, retry=None) as backend,
    ):
        assert backend.acquire("k", ttl_ms=60_000).ok
        brief = Acquisition(timeout_ms=60_000, retry_delay_ms=300)
        waiter = pool.submit(lambda: lock(backend, "k", acquisition=brief).__enter__())
        wait_until(lambda: blocked_clients(server) == 1)
        server.kill()
        with pytest.raises(LockError) as caught:
            waiter.result(timeout=60)
        assert caught.value.code in ("ServiceUnavailable", "NetworkTimeout")
