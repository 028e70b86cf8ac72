"""``syncguard.aio.lock`` and ``hold`` on a real Redis: the asyncio version of ``test_lock``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from late_reply import late_reply
from wait_until import wait_until_async

from syncguard import Acquisition, AcquisitionTimeout, LockError, LockLost, aio
from syncguard._lock.release_after_block import Disposal
from syncguard.aio import AsyncAcquired, Contended, ExtendResult, ReleaseResult
from syncguard.redis import AsyncRedisBackend
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@asynccontextmanager
async def backend_on(server: RedisServer, **options: object) -> AsyncIterator[AsyncRedisBackend]:
    async with AsyncRedisBackend.from_url(server.url, **options) as backend:  # type: ignore[arg-type]
        yield backend


def run(server: RedisServer, body: Callable[[AsyncRedisBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        async with backend_on(server) as backend:
            await asyncio.wait_for(body(backend), 120)

    asyncio.run(main())


def test_the_lock_is_held_in_the_block_and_free_after_it(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        async with aio.lock(backend, "k") as held:
            info = await backend.lookup(lock_id=held.lock_id)
            assert info is not None
            assert info.fence == held.fence
            with pytest.raises(LockError) as caught:
                other = aio.lock(backend, "k", acquisition=ONCE).__aenter__()
                await asyncio.create_task(other)  # type: ignore[arg-type]
            assert isinstance(caught.value, AcquisitionTimeout)
            assert caught.value.context.key == "k"
        assert not await backend.is_locked("k")

    run(syncguard_redis, body)


def test_a_signal_that_is_already_set_aborts_before_the_first_attempt(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        signal = asyncio.Event()
        signal.set()
        with pytest.raises(LockError) as caught:
            await aio.lock(backend, "k", signal=signal).__aenter__()
        assert caught.value.code == "Aborted"
        assert await backend.count_fence_counters() == 0

    run(syncguard_redis, body)


def test_a_backend_has_lock_as_a_method_too(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        mine = backend.lock("secret-key", ttl_ms=5_000, holder="me")
        async with mine as held:
            assert "secret-key" not in repr(mine)
            assert held.lock_id not in repr(mine)
            info = await backend.lookup(key="secret-key")
            assert info is not None
            assert info.holder == "me"

    run(syncguard_redis, body)


def test_a_lock_decorates_async_functions(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        @aio.lock(backend, "k")
        async def work(number: int) -> int:
            assert await backend.is_locked("k")
            return number + 1

        assert await work(1) == 2
        assert await asyncio.gather(*(work(n) for n in range(5))) == [1, 2, 3, 4, 5]
        assert not await backend.is_locked("k")

    run(syncguard_redis, body)


def test_functions_that_the_lock_would_not_cover_cannot_be_decorated(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        async def generator() -> AsyncIterator[int]:
            yield 1

        def plain() -> None: ...

        for function in (generator, plain):
            with pytest.raises(LockError) as caught:
                aio.lock(backend, "k")(function)  # type: ignore[arg-type]
            assert caught.value.code == "InvalidArgument"

    run(syncguard_redis, body)


def test_one_lock_object_can_be_used_for_one_block_at_a_time(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        mine = aio.lock(backend, "k")
        async with mine:
            with pytest.raises(LockError, match="in use"):
                await mine.__aenter__()

    run(syncguard_redis, body)


def test_a_lost_lock_is_reported_when_the_block_ends(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        told: list[object] = []
        with pytest.raises(LockLost):
            async with aio.lock(backend, "k", on_lost=told.append) as held:
                await backend.release(held.lock_id)
        assert told == [held]

    run(syncguard_redis, body)


def test_a_lock_lost_with_the_servers_data_is_reported_when_the_block_ends() -> None:
    """The kept connection is closed, so the release is sent again. Its result must not be ok."""

    async def main() -> None:
        with RedisServer() as server:
            async with backend_on(server) as backend:
                with pytest.raises(LockLost):
                    async with aio.lock(backend, "k", ttl_ms=30_000):
                        server.kill()
                        server.restart()

    asyncio.run(main())


def test_a_failing_async_on_lost_does_not_affect_the_lock(
    syncguard_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def body(backend: AsyncRedisBackend) -> None:
        with pytest.raises(LockLost):
            async with aio.lock(backend, "k", on_lost=fail) as held:
                await backend.release(held.lock_id)
        while "on_lost" not in caplog.text:
            await asyncio.sleep(0)

    run(syncguard_redis, body)


def test_a_kept_lock_stays_after_its_block(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        async with aio.lock(backend, "k", ttl_ms=20_000) as held:
            held.keep()
        assert await backend.is_locked("k")
        assert (await backend.release(held.lock_id)).ok
        async with aio.lock(backend, "k", ttl_ms=50_000) as held:
            held.keep(ttl_ms=30_000)
        with syncguard_redis.client() as client:
            assert 0 < client.pttl("syncguard:k") <= 30_000

    run(syncguard_redis, body)


def test_a_kept_lock_whose_ttl_has_ended_is_reported_without_a_request(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        with pytest.raises(LockLost):
            async with aio.lock(backend, "k", ttl_ms=1_000) as held:
                held.keep()
                while await backend.is_locked("k") or not held.past_deadline:
                    await asyncio.sleep(0.001)

    run(syncguard_redis, body)


def test_a_second_task_cannot_wait_with_the_same_lock_object(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        mine = aio.lock(backend, "k", acquisition=Acquisition(timeout_ms=20_000))
        somebody = await backend.acquire("k", ttl_ms=60_000)
        assert somebody.ok
        first = asyncio.ensure_future(mine.__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(LockError, match="in use"):
            await mine.__aenter__()
        await somebody.release()
        assert (await first).fence == "000000000000002"
        await mine.__aexit__(None, None, None)
        assert not await backend.is_locked("k")

    run(syncguard_redis, body)


def test_an_adopted_lock_is_held_extended_and_released(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        first = await backend.acquire("k", ttl_ms=60_000)
        assert first.ok
        adopted = await backend.adopt(first.lock_id, ttl_ms=12_000)
        assert adopted.ok
        async with aio.hold(backend, adopted, auto_extend=True) as held:
            before = held.expires_at_ms
            while held.expires_at_ms == before:
                held.ensure_held()
                await asyncio.sleep(0.002)
        assert not await backend.is_locked("k")

    run(syncguard_redis, body)


def test_a_failed_release_reaches_the_callback_and_not_the_caller() -> None:
    async def main() -> None:
        codes: list[str] = []
        with RedisServer() as server:
            async with backend_on(server, retry=None) as backend:
                async with aio.lock(
                    backend, "k", on_release_error=lambda error, _c: codes.append(error.code)
                ):
                    server.kill()
        assert codes == ["ServiceUnavailable"]

    asyncio.run(main())


def test_dispose_timeout_ms_limits_the_time_of_the_release(syncguard_redis: RedisServer) -> None:
    async def main() -> None:
        codes: list[str] = []
        async with backend_on(
            syncguard_redis,
            dispose_timeout_ms=100,
            on_release_error=lambda error, _context: codes.append(error.code),
        ) as backend:
            async with await backend.acquire("k", ttl_ms=60_000):
                syncguard_redis.pause()
            assert codes == ["NetworkTimeout"]
            syncguard_redis.resume()
            while await backend.is_locked("k"):
                pass

    asyncio.run(main())


class Plain:
    """A third-party backend with the required parts: no waiter and no heartbeat channel."""

    def __init__(self, backend: AsyncRedisBackend) -> None:
        self._backend = backend
        self.acquires = 0
        self.extends = 0

    disposal = property(lambda _self: Disposal())

    async def acquire(self, *args: object, **kwargs: object) -> AsyncAcquired | Contended:
        self.acquires += 1
        return await self._backend.acquire(*args, **kwargs)  # type: ignore[arg-type]

    async def release(self, lock_id: str, **_kwargs: object) -> ReleaseResult:
        return await self._backend.release(lock_id)

    async def extend(self, lock_id: str, ttl_ms: int, **_kwargs: object) -> ExtendResult:
        self.extends += 1
        if self.extends == 1:
            raise OSError("a fault of the first call")
        return await self._backend.extend(lock_id, ttl_ms)


def test_a_backend_with_the_required_parts_only_can_wait_and_extend(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        plain = Plain(backend)
        holder = await backend.acquire("k", ttl_ms=60_000)
        assert holder.ok

        async def release_after_a_refusal() -> None:
            await wait_until_async(lambda: plain.acquires > 1)
            await holder.release()

        releasing = asyncio.ensure_future(release_after_a_refusal())
        policy = Acquisition(retry_delay_ms=20, max_retries=1_000, timeout_ms=60_000)
        async with aio.lock(
            plain,  # type: ignore[arg-type]
            "k",
            ttl_ms=12_000,
            auto_extend=True,
            acquisition=policy,
        ) as held:
            before = held.expires_at_ms
            while held.expires_at_ms == before:
                held.ensure_held()
                await asyncio.sleep(0.002)
        await releasing
        assert plain.acquires > 1
        assert plain.extends >= 2

    run(syncguard_redis, body)


def test_a_forked_child_does_not_release_the_parents_lock(syncguard_redis: RedisServer) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        parents = aio.lock(backend, "k", ttl_ms=20_000)
        await parents.__aenter__()
        pid = os.fork()
        if pid == 0:
            try:
                # Without an event loop: the coroutine returns before it awaits anything.
                parents.__aexit__(None, None, None).send(None)  # type: ignore[attr-defined]
            except StopIteration:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert await backend.is_locked("k")
        await parents.__aexit__(None, None, None)
        assert not await backend.is_locked("k")

    run(syncguard_redis, body)


def test_a_lock_granted_later_than_its_ttl_is_released(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        patient = Acquisition(timeout_ms=60_000)
        async with aio.lock(backend, "k", ttl_ms=600_000, acquisition=patient) as held:
            assert held.fence == "000000000000002"

    with late_reply():
        run(syncguard_redis, body)


def test_a_late_grant_of_the_last_attempt_is_released(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        once = Acquisition(max_retries=0, timeout_ms=60_000)
        with late_reply(), pytest.raises(LockError) as caught:
            await aio.lock(backend, "k", ttl_ms=600_000, acquisition=once).__aenter__()
        assert caught.value.code == "AcquisitionTimeout"
        await wait_until_async(lambda: undo_thread.pending == 0)
        assert not await backend.is_locked("k")
        with syncguard_redis.client() as client:
            assert client.get("syncguard:fence:syncguard:k") == b"1", "it was granted"

    run(syncguard_redis, body)
