"""One connection for all asyncio waiters of a loop: all are woken, whoever leaves meanwhile."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
import redis.asyncio

from syncguard import Acquisition, LockError, aio
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.wake_listener_async import _Listening

FAR = Acquisition(timeout_ms=100_000, retry_delay_ms=90_000, jitter="none")
"""A waiter that would sleep for 90 s: if it ends sooner, it was woken."""


@pytest.fixture
def holder(syncguard_redis):
    with syncguard_redis.client() as client:
        yield RedisBackend(client)


@pytest.fixture
def run(syncguard_redis):
    """Run a coroutine function with a backend; not for ever, on a busy machine either."""

    def run(main, **options):
        async def with_backend():
            # Without a socket time-out one BLPOP lasts 30 s: longer than a test waits.
            url = syncguard_redis.url
            options.setdefault("socket_timeout", None)
            async with AsyncRedisBackend.from_url(url, **options) as backend:
                return await main(backend)

        return asyncio.run(asyncio.wait_for(with_backend(), 240))

    return run


async def take(backend, key):
    async with aio.lock(backend, key, ttl_ms=100_000, acquisition=FAR) as held:
        return held.fence


async def until(condition):
    async with asyncio.timeout(120) if hasattr(asyncio, "timeout") else _Unbounded():
        while not condition():
            await asyncio.sleep(0.002)


class _Unbounded:
    """Python 3.10 has no asyncio.timeout; the fixture ``run`` has a limit too."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exc):
        return None


def listener_of(backend):
    return backend._listener_of(backend._calls.names.of("k"))


def pending_lists(backend):
    listening = listener_of(backend)._listening
    return " ".join(listening.pending) if listening is not None else ""


async def start_waiting(backend, client, key):
    """Start a waiter, and return when it listens."""
    before = len(listener_of(backend).waiters)
    waiter = asyncio.ensure_future(take(backend, key))
    await until(lambda: len(listener_of(backend).waiters) > before)
    await until(lambda: f"wake:syncguard:{key}" in pending_lists(backend))
    await until(lambda: blocked(client))
    return waiter


def blocked(client):
    """The connections that are blocked in a BLPOP."""
    return [each for each in client.client_list() if "b" in each["flags"]]


def test_many_tasks_that_wait_for_ten_locks_use_one_connection_and_all_are_woken(
    run, client, holder
):
    async def main(backend):
        held = [holder.acquire(f"k{n}", 100_000) for n in range(10)]
        waiters = [await start_waiting(backend, client, f"k{n % 10}") for n in range(60)]
        assert len(blocked(client)) == 1
        for each in held:
            each.release()
        return await asyncio.wait_for(asyncio.gather(*waiters), 25)

    assert sorted(run(main)) == sorted(f"{n:015}" for n in range(2, 8) for _ in range(10))
    assert not blocked(client)


def test_a_waiter_for_another_lock_joins_the_pending_blpop(run, client, holder):
    async def main(backend):
        first, second = holder.acquire("k", 100_000), holder.acquire("second", 100_000)
        waiter = await start_waiting(backend, client, "k")
        other = await start_waiting(backend, client, "second")
        second.release()
        await asyncio.wait_for(other, 25)
        assert not waiter.done()
        first.release()
        await asyncio.wait_for(waiter, 25)

    run(main)


def test_if_a_waiter_is_cancelled_the_others_are_woken_on_the_same_connection(run, client, holder):
    async def main(backend):
        held = holder.acquire("k", 100_000)
        leaves = await start_waiting(backend, client, "k")
        stays = await start_waiting(backend, client, "k")
        (before,) = blocked(client)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        assert [each["id"] for each in blocked(client)] == [before["id"]]
        held.release()
        await asyncio.wait_for(stays, 25)

    run(main)


def test_when_the_last_waiter_has_left_nobody_listens(run, client, holder):
    async def main(backend):
        holder.acquire("k", 100_000)
        waiter = await start_waiting(backend, client, "k")
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await until(lambda: not blocked(client))
        assert listener_of(backend)._listening is None

    run(main)


def test_a_listener_whose_cancellation_was_ignored_still_ends(run, client, holder, monkeypatch):
    """asyncio.wait_for of Python 3.10 and 3.11 may ignore one; redis-py sends under it."""
    blpop, ignored = _Listening._blpop, []

    async def ignores_one(self, connection):
        try:
            await blpop(self, connection)
        except asyncio.CancelledError:
            ignored.append(True)
            await asyncio.sleep(3600)

    async def main(backend):
        holder.acquire("k", 100_000)
        monkeypatch.setattr(_Listening, "_blpop", ignores_one)
        waiter = await start_waiting(backend, client, "k")
        waiter.cancel()
        await asyncio.wait_for(asyncio.gather(waiter, return_exceptions=True), 25)
        assert ignored
        await until(lambda: not blocked(client))

    run(main)


def test_a_wake_up_for_a_waiter_that_left_is_passed_on_to_another_process(
    run, client, holder, syncguard_redis
):
    async def main(backend):
        held, other = holder.acquire("k", 100_000), holder.acquire("other", 100_000)
        leaves = await start_waiting(backend, client, "k")
        stays = await start_waiting(backend, client, "other")
        url = syncguard_redis.url
        async with AsyncRedisBackend.from_url(url, socket_timeout=None) as elsewhere:
            there = await start_waiting(elsewhere, client, "k")
            await until(lambda: len(blocked(client)) == 2)
            leaves.cancel()
            await asyncio.gather(leaves, return_exceptions=True)
            held.release()  # Redis gives it to the connection that has waited longest
            await asyncio.wait_for(there, 25)
        other.release()
        await asyncio.wait_for(stays, 25)

    run(main)


def test_after_the_connection_was_killed_the_waiters_listen_on_another(run, client, holder):
    async def main(backend):
        held = holder.acquire("k", 100_000)
        waiters = [await start_waiting(backend, client, "k") for _ in range(3)]
        (killed,) = blocked(client)
        client.client_kill_filter(_id=killed["id"])
        await until(lambda: [each["id"] for each in blocked(client)] not in ([], [killed["id"]]))
        held.release()
        await asyncio.wait_for(asyncio.gather(*waiters), 25)

    run(main)


def test_a_wake_up_that_was_lost_with_the_connection_is_passed_on(run, client, holder):
    async def main(backend):
        holder.acquire("k", 100_000)
        waiter = await start_waiting(backend, client, "k")
        (killed,) = blocked(client)
        with client.pipeline(transaction=True) as steps:
            steps.client_kill_filter(_id=killed["id"])
            steps.delete("syncguard:k")  # as if the wake-up had gone into the dead connection
            steps.execute()
        await asyncio.wait_for(waiter, 25)

    run(main)


def test_a_waiter_that_comes_while_the_listener_ends_is_woken(run, client, holder):
    """The task has seen that nobody waits, and gives its connection back."""

    async def main(backend):
        listener = listener_of(backend)
        first, second = holder.acquire("k", 100_000), holder.acquire("second", 100_000)
        release, comes = listener.pool.release, []

        async def release_slowly(connection):
            if not comes:
                comes.append(asyncio.ensure_future(take(backend, "second")))
                await until(lambda: len(listener.waiters) == 1)
            return await release(connection)

        listener.pool.release = release_slowly
        try:
            waiter = await start_waiting(backend, client, "k")
            first.release()
            await asyncio.wait_for(waiter, 25)
            await until(lambda: blocked(client))
            second.release()
            await asyncio.wait_for(comes[0], 25)
        finally:
            del listener.pool.release

    run(main)


def test_the_listener_does_not_keep_the_context_of_the_first_waiter(run, client, holder):
    request = contextvars.ContextVar("request")

    async def main(backend):
        request.set("the request of the first waiter")
        held = holder.acquire("k", 100_000)
        waiter = await start_waiting(backend, client, "k")
        listening = listener_of(backend)._listening
        # Python 3.12 and newer show the context of a task; before that, ask from inside.
        seen = []
        wake = type(listener_of(backend).waiters).wake_longest

        def look(self, wake_list):
            seen.append(request.get(None))
            return wake(self, wake_list)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(listener_of(backend).waiters), "wake_longest", look)
            held.release()
            await asyncio.wait_for(waiter, 25)
        assert listening is not None
        return seen

    assert run(main) == [None]


def test_on_a_small_pool_no_waiter_takes_a_connection(run, client, holder):
    async def main(backend):
        assert listener_of(backend) is None
        held = holder.acquire("k", 100_000)
        often = Acquisition(timeout_ms=60_000, retry_delay_ms=30, max_retries=1_000)
        asyncio.get_running_loop().call_later(0.3, held.release)
        async with aio.lock(backend, "k", acquisition=often):
            assert not blocked(client)

    run(main, max_connections=3)


def test_eight_hundred_waiting_tasks_do_not_open_eight_hundred_connections(run, client, holder):
    async def main(backend):
        held = holder.acquire("k", 100_000)
        before = len(client.client_list())
        stop = asyncio.Event()

        async def wait():
            with pytest.raises(LockError, match="aborted"):
                async with aio.lock(backend, "k", acquisition=FAR, signal=stop):
                    pass

        waiters = []

        def all_wait():
            return len(listener_of(backend).waiters) == len(waiters)

        for _ in range(80):  # ten at a time: each attempt may take a connection for itself
            waiters.extend(asyncio.ensure_future(wait()) for _ in range(10))
            await until(all_wait)
        await until(lambda: blocked(client))
        assert len(client.client_list()) - before <= 1 + 10
        stop.set()
        await asyncio.gather(*waiters)
        held.release()

    run(main)


def test_a_second_loop_has_a_listener_of_its_own(syncguard_redis, client, holder):
    """A connection belongs to its loop. The pool is closed in between, as redis-py demands."""
    shared = redis.asyncio.Redis(port=syncguard_redis.port)
    backend = AsyncRedisBackend(shared)

    async def main():
        held = holder.acquire("k", 100_000)
        waiter = await start_waiting(backend, client, "k")
        held.release()
        fence = await asyncio.wait_for(waiter, 25)
        await backend.aclose()
        await shared.aclose()
        return fence

    assert asyncio.run(main()) < asyncio.run(main())
