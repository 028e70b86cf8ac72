"""Heartbeats under fault: a real Redis that is paused, killed and restarted under held locks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
import redis.asyncio

from syncguard import (
    LockError,
    LockEvent,
    LockLost,
    aio,
    heartbeat,
    lanes,
    lock,
    with_telemetry,
)
from syncguard.clock import holder_clock_ms
from syncguard.held import Held
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

TTL_MS = 500


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with RedisBackend(redis.Redis(port=syncguard_redis.port)) as backend:
        yield backend


@pytest.fixture
def frail_redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, to be paused and killed."""
    with RedisServer(aof=True) as server:
        yield server


def wait_until(condition: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)


def is_between_two_beats(held: Held) -> bool:
    """Extended before, and the next extension is neither under way nor about to be."""
    since_last_ms = holder_clock_ms() - (held.deadline_ms - TTL_MS)
    extended = held.deadline_ms > held._grant.sent_at_ms + TTL_MS
    return extended and 60 < since_last_ms < 120


def heartbeat_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "syncguard-heartbeat"]


def test_a_lock_with_auto_extend_is_never_seen_free_for_ten_times_its_ttl(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    with RedisBackend(redis.Redis(port=syncguard_redis.port)) as observer:
        with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
            looks = 0
            until = time.monotonic() + 5
            while time.monotonic() < until:
                assert observer.is_locked("k")
                looks += 1
            assert not held.lost
        assert not observer.is_locked("k")
    assert looks > 100


def test_a_paused_redis_loses_the_lock_within_its_ttl_on_the_holders_clock(
    frail_redis: RedisServer, backend: RedisBackend
) -> None:
    # redis-py's default client: it would wait for seconds and retry many times.
    frail = RedisBackend(redis.Redis(port=frail_redis.port))
    told: list[float] = []
    with lock(backend, "healthy", ttl_ms=TTL_MS, auto_extend=True) as healthy:
        with pytest.raises(LockLost):
            with lock(
                frail,
                "k",
                ttl_ms=TTL_MS,
                auto_extend=True,
                on_lost=lambda: told.append(holder_clock_ms()),
            ) as held:
                wait_until(lambda: is_between_two_beats(held))
                frail_redis.pause()
                paused_at = holder_clock_ms()
                resume = threading.Timer(2, frail_redis.resume)
                resume.start()
                wait_until(lambda: held.lost and bool(told))
                with pytest.raises(LockLost):
                    held.ensure_held()
        resume.join()
        # The other backend, on a healthy server, lost nothing meanwhile.
        assert not healthy.lost
    # The last request that succeeded was sent before the pause, so the deadline is at most a
    # TTL after it; the callback runs before the deadline.
    assert told[0] <= paused_at + TTL_MS
    assert told[0] <= held.deadline_ms
    frail.close()


def test_a_lost_lock_stays_lost_when_the_server_is_back(frail_redis: RedisServer) -> None:
    with RedisBackend(redis.Redis(port=frail_redis.port)) as backend:
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                with frail_redis.paused():
                    wait_until(lambda: held.lost)
                wait_until(lambda: frail_redis.client().ping())
                assert held.lost
        # Its release was attempted all the same, or its TTL has run out: nothing is left.
        wait_until(lambda: not backend.is_locked("k"))


def test_what_the_body_raised_wins_over_the_lost_lock(frail_redis: RedisServer) -> None:
    with RedisBackend(redis.Redis(port=frail_redis.port)) as backend:
        with pytest.raises(ZeroDivisionError):
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                with frail_redis.paused():
                    wait_until(lambda: held.lost)
                raise ZeroDivisionError


def test_one_transient_fault_does_not_end_the_heartbeat(frail_redis: RedisServer) -> None:
    """A renewer that dies of one error loses the lock at the next TTL; ours goes on."""
    with RedisBackend(redis.Redis(port=frail_redis.port)) as backend:
        with lock(backend, "k", ttl_ms=4_000, auto_extend=True) as held:
            frail_redis.kill()
            frail_redis.restart()
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before)
            assert not held.lost
        assert not backend.is_locked("k")


def test_a_script_flush_does_not_end_the_heartbeat(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    with lock(backend, "k", ttl_ms=600, auto_extend=True) as held:
        first = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > first)
        syncguard_redis.client().script_flush()
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)


def test_a_lock_that_was_force_released_is_lost_at_the_next_beat(backend: RedisBackend) -> None:
    told = threading.Event()
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=3_000, auto_extend=True, on_lost=told.set) as held:
            (info,) = backend.live_locks()
            backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash)
            assert told.wait(20)
            # Long before its TTL, because the server said so.
            assert holder_clock_ms() < held.deadline_ms
            assert held.lost


def test_a_thousand_locks_on_many_backends_need_one_thread(syncguard_redis: RedisServer) -> None:
    backends = [RedisBackend(redis.Redis(port=syncguard_redis.port)) for _ in range(4)]
    with ExitStack() as stack:
        for backend in backends:
            stack.enter_context(backend)
        helds = [
            stack.enter_context(lock(backends[n % 4], f"k{n}", ttl_ms=6_000, auto_extend=True))
            for n in range(1_000)
        ]
        first = {held.lock_id: held.expires_at_ms for held in helds}
        wait_until(lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds), within_s=60)
        assert len(heartbeat_threads()) == 1
        assert not any(held.lost for held in helds)
        ours = [t.name for t in threading.enumerate() if t.name.startswith("syncguard")]
        assert ours == ["syncguard-heartbeat"]


def test_extends_that_are_due_together_travel_together(syncguard_redis: RedisServer) -> None:
    """One connection carries the extensions of all locks, not one each."""
    client = redis.Redis(port=syncguard_redis.port, client_name="together")
    with ExitStack() as stack:
        backend = stack.enter_context(RedisBackend(client))
        helds = [
            stack.enter_context(lock(backend, f"k{n}", ttl_ms=1_500, auto_extend=True))
            for n in range(50)
        ]
        first = {held.lock_id: held.expires_at_ms for held in helds}
        wait_until(lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds))
        clients = syncguard_redis.client().client_list()
        extending = [c for c in clients if c["name"] == "together"]
        # The kept connection of the backend, and the heartbeat's.
        assert len(extending) <= 2


def test_a_slow_on_lost_delays_neither_other_heartbeats_nor_other_news(
    backend: RedisBackend,
) -> None:
    release, second = threading.Event(), threading.Event()

    def free(key: str) -> None:
        held = backend.lookup(key=key)
        assert held is not None
        backend.force_release(held.key_hash, fence=held.fence, lock_id_hash=held.lock_id_hash)

    with lock(backend, "alive", ttl_ms=TTL_MS, auto_extend=True) as alive, ExitStack() as stack:
        stack.enter_context(pytest.raises(LockLost))
        stack.enter_context(
            lock(backend, "a", ttl_ms=900, auto_extend=True, on_lost=lambda: release.wait(20))
        )
        stack.enter_context(pytest.raises(LockLost))
        stack.enter_context(lock(backend, "b", ttl_ms=900, auto_extend=True, on_lost=second.set))
        free("a")
        free("b")
        assert second.wait(20)
        before = alive.expires_at_ms
        wait_until(lambda: alive.expires_at_ms > before)
        release.set()


def test_a_failing_on_lost_harms_nothing(
    backend: RedisBackend, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_held: Held) -> None:
        raise ZeroDivisionError

    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=300, auto_extend=True, on_lost=fail) as held:
            backend.release(held.lock_id)
            wait_until(lambda: "on_lost" in caplog.text)
    with lock(backend, "k", ttl_ms=300, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)


def test_a_hung_holder_is_renewed_no_longer_than_max_hold_ms(backend: RedisBackend) -> None:
    told = threading.Event()
    with pytest.raises(LockLost):
        with lock(
            backend, "k", ttl_ms=300, auto_extend=True, max_hold_ms=900, on_lost=told.set
        ) as held:
            acquired_at = held._grant.sent_at_ms
            assert told.wait(20)
            lost_after = holder_clock_ms() - acquired_at
            assert held.lost
            # Renewed beyond its first TTL, and given up a TTL after the last renewal at most.
            assert held.deadline_ms - acquired_at > 900
            assert held.deadline_ms - acquired_at <= 900 + 300
            assert lost_after >= 900 - 300
    wait_until(lambda: not backend.is_locked("k"))


def test_without_auto_extend_on_lost_still_tells_when_the_ttl_is_over(
    backend: RedisBackend,
) -> None:
    told: list[Held] = []
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=200, on_lost=told.append) as held:
            wait_until(lambda: bool(told))
    assert told == [held]


def test_without_a_heartbeat_a_block_that_outlives_its_ttl_raises_lock_lost(
    backend: RedisBackend,
) -> None:
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=50):
            wait_until(lambda: not backend.is_locked("k"))


def test_nothing_extends_a_lock_after_its_block(backend: RedisBackend) -> None:
    """Not even when leaving races with the schedule: very short blocks, at the time of a beat."""
    for _ in range(10):
        with lock(backend, "k", ttl_ms=600, auto_extend=True) as held:
            due = held.deadline_ms - 400
            wait_until(lambda due=due: holder_clock_ms() >= due)
        assert not backend.is_locked("k")
        assert backend.count_live_locks() == 0


def test_the_thread_ends_when_nothing_has_needed_it_for_a_while(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "IDLE_MS", 50)
    monkeypatch.setattr(lanes, "IDLE_MS", 50)
    with lock(backend, "k", ttl_ms=150, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)
    wait_until(lambda: not heartbeat_threads())
    with lock(backend, "k", ttl_ms=150, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)


def test_a_connection_that_the_server_closed_while_idle_does_not_keep_the_thread_busy(
    frail_redis: RedisServer,
) -> None:
    with RedisBackend(redis.Redis(port=frail_redis.port)) as backend:
        with lock(backend, "k", ttl_ms=2_000, auto_extend=True) as held:
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before)
            lane = heartbeat._heartbeat._lanes[id(backend)]
            assert lane.channel is not None
            frail_redis.client().client_kill_filter(_type="normal", skipme=True)
            # Noticed and hung up, instead of being woken by the closed socket for ever.
            wait_until(lambda: lane.channel is None)
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before)


def test_half_a_reply_from_one_server_does_not_stop_the_others(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    """A relay lets only the beginning of each answer to an extension through."""
    with Stingy(syncguard_redis.port) as relay:
        slow = RedisBackend(
            redis.Redis(port=relay.port), key_prefix="slow", on_release_error=lambda _e, _c: None
        )
        with lock(backend, "k", ttl_ms=600, auto_extend=True) as healthy:
            with pytest.raises(LockLost):
                with lock(slow, "k", ttl_ms=900, auto_extend=True) as held:
                    relay.stingy = True
                    wait_until(lambda: held.lost)
            assert not healthy.lost


class Stingy:
    """A relay to a Redis that, when told so, passes on only three bytes of each answer."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.stingy = False
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Stingy:
        return self

    def __exit__(self, *_exc: object) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, 3), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, most: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data[:most] if self.stingy else data)


def test_a_ttl_of_a_year_can_be_watched(backend: RedisBackend) -> None:
    """A selector refuses to sleep for more than 24 days at once."""
    with lock(backend, "long", ttl_ms=365 * 24 * 3600 * 1000, auto_extend=True):
        with lock(backend, "short", ttl_ms=300, auto_extend=True) as held:
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before)


def test_a_thread_that_could_not_start_is_started_by_the_next_lock(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "IDLE_MS", 50)
    monkeypatch.setattr(lanes, "IDLE_MS", 50)
    wait_until(lambda: not heartbeat_threads())

    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="new thread"):
            lock(backend, "k", auto_extend=True).__enter__()
    assert not backend.is_locked("k")
    with lock(backend, "k", ttl_ms=300, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)


def test_a_slow_telemetry_callback_does_not_stop_the_heartbeats(
    backend: RedisBackend, syncguard_redis: RedisServer
) -> None:
    go_on = threading.Event()
    extended: list[LockEvent] = []

    def slow(event: LockEvent) -> None:
        if event.type == "extend":
            go_on.wait(20)
            extended.append(event)

    with RedisBackend(redis.Redis(port=syncguard_redis.port)) as other:
        reporting = with_telemetry(other, slow)
        with lock(reporting, "reported", ttl_ms=900, auto_extend=True) as first:
            before = first.expires_at_ms
            wait_until(lambda: first.expires_at_ms > before)
            with lock(backend, "k", ttl_ms=600, auto_extend=True) as held:
                before = held.expires_at_ms
                wait_until(lambda: held.expires_at_ms > before)
            go_on.set()
        wait_until(lambda: bool(extended))
    assert extended[0].result == "ok"


def test_why_extending_fails_is_said_once(
    syncguard_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    admin = syncguard_redis.client()
    admin.acl_setuser(
        "worker", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset=True
    )
    client = redis.Redis(port=syncguard_redis.port, username="worker", password="any")
    backend = RedisBackend(client, on_release_error=lambda _error, _context: None)
    with pytest.raises(LockLost):
        with lock(backend, "secret-key", ttl_ms=900, auto_extend=True) as held:
            admin.acl_setuser("worker", commands=["-evalsha", "-eval"], enabled=True)
            wait_until(lambda: held.lost)
    admin.acl_deluser("worker")
    said = [r.getMessage() for r in caplog.records if "extending locks" in r.getMessage()]
    assert len(said) == 1
    assert "AuthFailed" in said[0]
    assert "secret-key" not in said[0]
    client.close()


def test_a_user_who_may_only_run_scripts_can_hold_a_lock_with_a_heartbeat(
    syncguard_redis: RedisServer,
) -> None:
    """No SCRIPT LOAD: who may not, still may EVAL."""
    admin = syncguard_redis.client()
    admin.script_flush()
    admin.acl_setuser(
        "worker",
        enabled=True,
        nopass=True,
        keys=["*"],
        commands=["+@all", "-script"],
        reset=True,
    )
    client = redis.Redis(port=syncguard_redis.port, username="worker", password="any")
    with RedisBackend(client) as backend:
        with lock(backend, "k", ttl_ms=600, auto_extend=True) as held:
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before)
    client.close()
    admin.acl_deluser("worker")


def test_a_bug_in_one_turn_does_not_end_the_heartbeat(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pump, failures = heartbeat.Heartbeat._pump, [ZeroDivisionError()]

    def fail_once(self: heartbeat.Heartbeat, lane: lanes.Lane) -> None:
        if failures:
            raise failures.pop()
        pump(self, lane)

    monkeypatch.setattr(heartbeat.Heartbeat, "_pump", fail_once)
    with lock(backend, "k", ttl_ms=900, auto_extend=True) as held:
        before = held.expires_at_ms
        wait_until(lambda: held.expires_at_ms > before)
    assert "goes on" in caplog.text


def test_a_server_that_cannot_be_reached_at_all_still_loses_the_lock_in_time(
    frail_redis: RedisServer,
) -> None:
    client = redis.Redis(port=frail_redis.port)
    with RedisBackend(client, on_release_error=lambda _error, _context: None) as backend:
        with pytest.raises(LockLost):
            with lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                frail_redis.kill()
                wait_until(lambda: held.lost)
                assert holder_clock_ms() <= held.deadline_ms + TTL_MS


def test_asyncio_a_loop_that_used_heartbeats_is_not_kept_alive(
    syncguard_redis: RedisServer,
) -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=300, auto_extend=True) as held:
                before = held.expires_at_ms
                await until(lambda: held.expires_at_ms > before)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


# -- asyncio ----------------------------------------------------------------------------------


async def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.002)


def test_asyncio_a_lock_with_auto_extend_outlives_its_ttl(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=300, auto_extend=True) as held:
                until_s = time.monotonic() + 1.5
                while time.monotonic() < until_s:
                    assert await backend.is_locked("k")
                assert not held.lost
            assert not await backend.is_locked("k")

    asyncio.run(main())


def test_asyncio_a_paused_redis_loses_the_lock_within_its_ttl_and_only_there(
    frail_redis: RedisServer, syncguard_redis: RedisServer
) -> None:
    async def main() -> None:
        told: list[float] = []

        async def on_lost() -> None:
            told.append(holder_clock_ms())

        frail = AsyncRedisBackend.from_url(frail_redis.url)
        healthy = AsyncRedisBackend.from_url(syncguard_redis.url)
        async with frail, healthy:
            async with aio.lock(healthy, "h", ttl_ms=TTL_MS, auto_extend=True) as other:
                with pytest.raises(LockLost):
                    async with aio.lock(
                        frail, "k", ttl_ms=TTL_MS, auto_extend=True, on_lost=on_lost
                    ) as held:
                        await until(lambda: is_between_two_beats(held))
                        frail_redis.pause()
                        paused_at = holder_clock_ms()
                        await until(lambda: held.lost and bool(told))
                        assert told[0] <= paused_at + TTL_MS
                        frail_redis.resume()
                assert not other.lost

    asyncio.run(main())


def test_asyncio_a_thousand_locks_need_one_task(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            locks = [
                aio.lock(backend, f"k{n}", ttl_ms=6_000, auto_extend=True) for n in range(1_000)
            ]
            helds = [await each.__aenter__() for each in locks]
            first = {held.lock_id: held.expires_at_ms for held in helds}
            await until(lambda: all(h.expires_at_ms > first[h.lock_id] for h in helds), 60)
            beating = [
                task
                for task in asyncio.all_tasks()
                if "AsyncHeartbeat._run" in repr(task.get_coro())
            ]
            assert len(beating) == 1
            for each in locks:
                await each.__aexit__(None, None, None)

    asyncio.run(main())


def test_asyncio_a_dead_server_is_told_by_the_holders_clock(frail_redis: RedisServer) -> None:
    async def main() -> None:
        errors: list[LockError] = []
        backend = AsyncRedisBackend.from_url(
            frail_redis.url, on_release_error=lambda error, _context: errors.append(error)
        )
        async with backend:
            with pytest.raises(LockLost):
                async with aio.lock(backend, "k", ttl_ms=TTL_MS, auto_extend=True) as held:
                    frail_redis.kill()
                    await until(lambda: held.lost)
        assert [error.code for error in errors] in (["ServiceUnavailable"], ["NetworkTimeout"])

    asyncio.run(main())
