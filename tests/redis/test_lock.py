"""``lock()`` and ``hold()`` on a real Redis, blocking."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import redis
from call_later import call_later
from clients import backend_on
from late_reply import late_reply
from wait_until import wait_until

import syncguard
from syncguard import (
    Acquired,
    Acquisition,
    AcquisitionTimeout,
    Contended,
    ExtendResult,
    Lock,
    LockError,
    LockLost,
    ReleaseResult,
    hold,
    lock,
)
from syncguard._lock.release_after_block import Disposal
from syncguard._lock.sleeping_waiter import open_waiter
from syncguard.redis import RedisBackend
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer
from syncguard.types import ReleaseErrorContext

ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with backend_on(syncguard_redis.port) as backend:
        yield backend


def test_the_lock_is_held_in_the_block_and_free_after_it(backend: RedisBackend) -> None:
    with lock(backend, "k") as held:
        assert backend.is_locked("k")
        info = backend.lookup(lock_id=held.lock_id)
        assert info is not None
        assert info.fence == held.fence
        assert info.expires_at_ms == held.expires_at_ms
        held.ensure_held()
    assert not backend.is_locked("k")


def test_the_lock_is_released_when_the_body_raises(backend: RedisBackend) -> None:
    with pytest.raises(ZeroDivisionError), lock(backend, "k"):
        raise ZeroDivisionError
    assert not backend.is_locked("k")


def test_a_held_lock_is_refused_to_other_callers(backend: RedisBackend) -> None:
    with backend.acquire("k"), pytest.raises(LockError) as caught:  # type: ignore[union-attr]
        lock(backend, "k", acquisition=ONCE).__enter__()
    assert isinstance(caught.value, AcquisitionTimeout)
    assert caught.value.context.key == "k"


def test_a_signal_that_is_already_set_aborts_before_the_first_attempt(
    backend: RedisBackend,
) -> None:
    signal = threading.Event()
    signal.set()
    with pytest.raises(LockError) as caught:
        lock(backend, "k", signal=signal).__enter__()
    assert caught.value.code == "Aborted"
    assert backend.count_fence_counters() == 0


def test_a_backend_has_lock_as_a_method_too(backend: RedisBackend) -> None:
    with backend.lock("k", ttl_ms=5_000, holder="me"):
        info = backend.lookup(key="k")
        assert info is not None
        assert info.holder == "me"


def test_a_lock_decorates_functions(backend: RedisBackend) -> None:
    @lock(backend, "k")
    def work(number: int, *, plus: int) -> int:
        """The decorator keeps the name and the docstring."""
        assert backend.is_locked("k")
        return number + plus

    assert work(1, plus=2) == 3
    assert work(3, plus=4) == 7, "a decorated function can be called again"
    assert not backend.is_locked("k")
    assert (work.__name__, work.__doc__) == (
        "work",
        "The decorator keeps the name and the docstring.",
    )


def test_a_decorated_function_may_run_in_many_threads(backend: RedisBackend) -> None:
    inside: list[int] = []

    @lock(backend, "k", acquisition=Acquisition(timeout_ms=60_000))
    def work() -> None:
        inside.append(1)
        assert len(inside) == 1, "two threads hold one lock"
        inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside


def test_functions_whose_body_runs_after_the_call_cannot_be_decorated(
    backend: RedisBackend,
) -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    for function in (generator, coroutine):
        with pytest.raises(LockError) as caught:
            lock(backend, "k")(function)
        assert caught.value.code == "InvalidArgument"


def test_one_lock_object_can_be_used_for_one_block_at_a_time(backend: RedisBackend) -> None:
    mine = lock(backend, "k")
    with mine, pytest.raises(LockError, match="in use"):
        mine.__enter__()
    with mine:
        assert backend.is_locked("k"), "after its block it can be used again"


def test_a_second_thread_cannot_wait_with_the_same_lock_object(backend: RedisBackend) -> None:
    mine = lock(backend, "k", acquisition=Acquisition(timeout_ms=20_000))
    somebody = backend.acquire("k", ttl_ms=60_000)
    assert somebody.ok
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(mine.__enter__) for _ in range(2)]
        (second,) = wait(waiting, timeout=20, return_when="FIRST_COMPLETED").done
        with pytest.raises(LockError, match="in use"):
            second.result()
        somebody.release()
        (first,) = set(waiting) - {second}
        assert first.result(timeout=20).fence == "000000000000002"
    mine.__exit__(None, None, None)
    assert not backend.is_locked("k")


def test_a_lock_prints_neither_key_nor_id(backend: RedisBackend) -> None:
    mine = lock(backend, "secret-key")
    with mine as held:
        for shown in (repr(mine), repr(held)):
            assert "secret-key" not in shown
            assert held.lock_id not in shown


def test_a_lost_lock_is_reported_when_the_block_ends(backend: RedisBackend) -> None:
    with pytest.raises(LockLost) as caught:
        with lock(backend, "k") as held:
            backend.release(held.lock_id)
    assert caught.value.code == "LockLost"
    assert held.lost


def test_a_lock_lost_with_the_servers_data_is_reported_when_the_block_ends() -> None:
    """The kept connection is closed, so the release is sent again. Its result must not be ok."""
    with RedisServer() as server:
        with backend_on(server.port) as backend, pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=30_000):
                server.kill()
                server.restart()


def lose_the_next_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    read = redis.Connection.read_response
    lost = [redis.ConnectionError("the reply was lost")]

    def lose_one(self: redis.Connection, *args: object, **kwargs: object) -> object:
        reply = read(self, *args, **kwargs)
        if lost:
            raise lost.pop()
        return reply

    monkeypatch.setattr(redis.Connection, "read_response", lose_one)


def test_a_lock_of_another_holder_is_reported_even_if_the_release_was_sent_twice(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        backend_on(syncguard_redis.port) as backend,
        syncguard_redis.client() as other,
        pytest.raises(LockLost),
    ):
        with lock(backend, "k", ttl_ms=30_000) as held:
            other.set("syncguard:k", '{"lockId":"other","expiresAtMs":9e15}')
            lose_the_next_reply(monkeypatch)
    monkeypatch.undo()
    assert held.lost


def test_a_release_whose_reply_was_lost_is_assumed_to_be_done(
    syncguard_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_on(syncguard_redis.port) as backend:
        with lock(backend, "k", ttl_ms=30_000):
            lose_the_next_reply(monkeypatch)
        monkeypatch.undo()
        assert not backend.is_locked("k")


# -- keep and adopt ---------------------------------------------------------------------------


def test_a_kept_lock_stays_after_its_block(backend: RedisBackend) -> None:
    with lock(backend, "k", ttl_ms=20_000) as held:
        held.keep()
    assert backend.is_locked("k")
    assert backend.release(held.lock_id).ok


def test_a_kept_lock_can_get_another_ttl(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    with lock(backend, "k", ttl_ms=50_000) as held:
        held.keep(ttl_ms=30_000)
    with syncguard_redis.client() as client:
        assert 0 < client.pttl("syncguard:k") <= 30_000


def test_a_kept_lock_that_was_lost_in_the_block_is_reported(backend: RedisBackend) -> None:
    with pytest.raises(LockLost):
        with lock(backend, "k") as held:
            backend.release(held.lock_id)
            held.keep(ttl_ms=5_000)


def test_a_kept_lock_whose_ttl_has_ended_is_reported_without_a_request(
    backend: RedisBackend,
) -> None:
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=1_000) as held:
            held.keep()
            while backend.is_locked("k") or not held.past_deadline:
                time.sleep(0.001)


def test_keep_refuses_an_invalid_ttl(backend: RedisBackend) -> None:
    with lock(backend, "k") as held, pytest.raises(LockError):
        held.keep(ttl_ms=0)


def test_an_adopted_lock_is_held_extended_and_released(backend: RedisBackend) -> None:
    first = backend.acquire("k", ttl_ms=60_000)
    assert first.ok
    adopted = backend.adopt(first.lock_id, ttl_ms=12_000)
    assert adopted.ok
    with hold(backend, adopted, auto_extend=True) as held:
        assert held.fence == first.fence
        before = held.expires_at_ms
        while held.expires_at_ms == before:
            held.ensure_held()
            time.sleep(0.005)
    assert not backend.is_locked("k")


# -- when the release fails -------------------------------------------------------------------


def test_a_failed_release_reaches_the_callback_and_not_the_caller() -> None:
    told: list[tuple[LockError, ReleaseErrorContext]] = []
    with RedisServer() as server, backend_on(server.port, retry=None) as backend:
        with lock(backend, "k", on_release_error=lambda e, c: told.append((e, c))) as held:
            server.kill()
    ((error, context),) = told
    assert error.code == "ServiceUnavailable"
    assert (context.key, context.lock_id, context.source) == ("k", held.lock_id, "lock")


def test_the_default_callback_logs_without_key_and_lock_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer() as server, backend_on(server.port, retry=None) as backend:
        with caplog.at_level(logging.ERROR, "syncguard"):
            with lock(backend, "secret-key") as held:
                server.kill()
    assert "ServiceUnavailable" in caplog.text
    assert "secret-key" not in caplog.text
    assert held.lock_id not in caplog.text


def test_dispose_timeout_ms_limits_the_time_of_the_release(syncguard_redis: RedisServer) -> None:
    told: list[LockError] = []
    with syncguard_redis.client() as client:
        backend = RedisBackend(
            client,
            dispose_timeout_ms=100,
            on_release_error=lambda error, _context: told.append(error),
        )
        with backend.acquire("k", ttl_ms=60_000):
            syncguard_redis.pause()
        # The block has ended while Redis still hangs.
        assert [error.code for error in told] == ["NetworkTimeout"]
        syncguard_redis.resume()
        # The release continues in the background, and frees the lock long before its TTL.
        while backend.is_locked("k"):
            pass
        backend.close()


# -- backends with the required parts only ----------------------------------------------------


class Plain:
    """A third-party backend with the required parts: no waiter and no heartbeat channel."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self.acquires = 0
        self.extends = 0

    capabilities = property(lambda self: self._backend.capabilities)
    disposal = property(lambda _self: Disposal())

    def acquire(self, *args: object, **kwargs: object) -> Acquired | Contended:
        self.acquires += 1
        return self._backend.acquire(*args, **kwargs)  # type: ignore[arg-type]

    def release(self, lock_id: str, **_kwargs: object) -> ReleaseResult:
        return self._backend.release(lock_id)

    def extend(self, lock_id: str, ttl_ms: int, **_kwargs: object) -> ExtendResult:
        self.extends += 1
        if self.extends == 1:
            raise OSError("a fault of the first call")
        return self._backend.extend(lock_id, ttl_ms)


def test_with_a_backend_without_waiting_lock_sleeps_between_attempts(backend: RedisBackend) -> None:
    plain = Plain(backend)
    holder = backend.acquire("k", ttl_ms=60_000)
    assert holder.ok
    policy = Acquisition(retry_delay_ms=20, max_retries=1_000, timeout_ms=60_000)

    def release_after_a_refusal() -> None:
        wait_until(lambda: plain.acquires > 1)
        holder.release()

    with call_later(0, release_after_a_refusal), lock(plain, "k", acquisition=policy):  # type: ignore[arg-type]
        assert plain.acquires > 1


def test_with_a_backend_without_channel_the_heartbeat_calls_extend(backend: RedisBackend) -> None:
    plain = Plain(backend)
    with lock(plain, "k", ttl_ms=12_000, auto_extend=True) as held:  # type: ignore[arg-type]
        before = held.expires_at_ms
        while held.expires_at_ms == before:
            held.ensure_held()
            time.sleep(0.005)
    assert plain.extends >= 2, "the fault of the first call did not end the heartbeat"


def test_a_signal_ends_the_wait_on_a_backend_without_waiting(backend: RedisBackend) -> None:
    signal = threading.Event()
    threading.Timer(0.1, signal.set).start()
    slow = Acquisition(retry_delay_ms=50_000, timeout_ms=60_000)
    with lock(backend, "k"), pytest.raises(LockError) as caught:
        lock(Plain(backend), "k", acquisition=slow, signal=signal).__enter__()  # type: ignore[arg-type]
    assert caught.value.code == "Aborted"


def test_an_interrupted_attempt_on_a_backend_without_waiting_releases_its_lock(
    backend: RedisBackend,
) -> None:
    waiter = open_waiter(Plain(backend), "k")  # type: ignore[arg-type]
    waiter.attempt(60_000, None, 0)
    assert backend.is_locked("k")
    waiter.undo()
    assert not backend.is_locked("k")


def test_a_heartbeat_that_cannot_start_leaves_no_lock(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(syncguard._heartbeat.heartbeat, "watch", no_thread)
    with pytest.raises(RuntimeError, match="new thread"):
        lock(backend, "k", auto_extend=True).__enter__()
    assert not backend.is_locked("k")


def test_a_lock_granted_later_than_its_ttl_is_released(backend: RedisBackend) -> None:
    patient = Acquisition(timeout_ms=60_000)
    with late_reply(), lock(backend, "k", ttl_ms=600_000, acquisition=patient) as held:
        # Granted at the second attempt: the remaining time of the first grant is unknown.
        assert not held.lost
        assert held.fence == "000000000000002"


def test_a_late_grant_of_the_last_attempt_is_released(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    once = Acquisition(max_retries=0, timeout_ms=60_000)
    with late_reply(), pytest.raises(LockError) as caught:
        lock(backend, "k", ttl_ms=600_000, acquisition=once).__enter__()
    assert caught.value.code == "AcquisitionTimeout"
    wait_until(lambda: undo_thread.pending == 0)
    assert not backend.is_locked("k")
    with syncguard_redis.client() as client:
        assert client.get("syncguard:fence:syncguard:k") == b"1", "it was granted"


def test_sync_lock_names_are_public(backend: RedisBackend) -> None:
    assert isinstance(lock(backend, "k"), Lock)
    assert asyncio.iscoroutinefunction(syncguard.aio.lock) is False
