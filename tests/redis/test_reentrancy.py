"""The same lock in a nested block: refused at once, or entered again with ``reentrant=True``."""

from __future__ import annotations

import asyncio
import gc
import os
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context

import pytest

from syncguard import (
    Acquired,
    Acquisition,
    LockError,
    LockLost,
    aio,
    current_fence,
    current_lock,
    hold,
    lock,
    with_telemetry,
)
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@pytest.fixture
def backend(syncguard_redis: RedisServer) -> Iterator[RedisBackend]:
    with RedisBackend.from_url(syncguard_redis.url) as backend:
        yield backend


def run(server: RedisServer, body: Callable[[AsyncRedisBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncRedisBackend.from_url(server.url) as backend:
            await body(backend)

    asyncio.run(main())


def code_of(error: BaseException | None) -> str:
    assert isinstance(error, LockError)
    return error.code


class TestTheSameKeyInside:
    def test_is_refused_at_once_without_a_request(
        self, backend: RedisBackend, syncguard_redis: RedisServer
    ) -> None:
        with lock(backend, "invoice:hunter2"):
            before = syncguard_redis.commands_processed()
            with pytest.raises(LockError, match="reentrant=True") as caught:
                lock(backend, "invoice:hunter2").__enter__()
            assert syncguard_redis.commands_processed() == before
            assert backend.is_locked("invoice:hunter2")
        assert code_of(caught.value) == "InvalidArgument"
        assert "hunter2" not in f"{caught.value} {caught.value!r}"

    def test_is_refused_at_once_in_asyncio(self, syncguard_redis: RedisServer) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            async with aio.lock(backend, "k"):
                before = syncguard_redis.commands_processed()
                with pytest.raises(LockError, match="reentrant=True") as caught:
                    await aio.lock(backend, "k").__aenter__()
                assert code_of(caught.value) == "InvalidArgument"
                assert syncguard_redis.commands_processed() == before

        run(syncguard_redis, body)

    def test_is_entered_again_with_the_same_fence_and_released_once(
        self, backend: RedisBackend
    ) -> None:
        with lock(backend, "k") as outer:
            with backend.lock("k", reentrant=True) as inner:
                assert inner is outer
            assert backend.is_locked("k")
            with lock(backend, "k", reentrant=True), lock(backend, "k", reentrant=True) as third:
                assert third.fence == outer.fence == current_fence()
            assert backend.is_locked("k")
        assert not backend.is_locked("k")

    def test_is_entered_again_in_asyncio(self, syncguard_redis: RedisServer) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            async with backend.lock("k") as outer:
                async with backend.lock("k", reentrant=True) as inner:
                    assert inner is outer
                    assert current_lock() is outer
                assert await backend.is_locked("k")
            assert not await backend.is_locked("k")

        run(syncguard_redis, body)

    def test_is_recognised_in_every_unicode_form(self, backend: RedisBackend) -> None:
        composed = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
        with lock(backend, composed) as outer:
            decomposed = unicodedata.normalize("NFD", composed)
            with lock(backend, decomposed, reentrant=True) as inner:
                assert inner is outer

    def test_is_recognised_behind_telemetry(self, backend: RedisBackend) -> None:
        reporting = with_telemetry(backend, lambda _event: None)
        with lock(reporting, "k") as outer:
            with pytest.raises(LockError, match="reentrant=True"):
                lock(backend, "k").__enter__()
            twice = with_telemetry(reporting, lambda _event: None)
            with lock(twice, "k", reentrant=True) as inner:
                assert inner is outer

    def test_of_another_prefix_is_another_lock(self, syncguard_redis: RedisServer) -> None:
        with (
            RedisBackend.from_url(syncguard_redis.url) as one,
            RedisBackend.from_url(syncguard_redis.url, key_prefix="other") as other,
            lock(one, "k") as outer,
            lock(other, "k", reentrant=True) as inner,
        ):
            assert inner is not outer
            assert other.is_locked("k")

    def test_is_refused_even_if_the_outer_lock_was_lost(self, backend: RedisBackend) -> None:
        with pytest.raises(LockLost), lock(backend, "k") as outer:
            outer.known_lost = True
            with pytest.raises(LockError, match="reentrant=True"):
                lock(backend, "k").__enter__()

    def test_of_a_lost_lock_is_not_entered_again(self, backend: RedisBackend) -> None:
        entered = []
        with pytest.raises(LockLost), lock(backend, "k") as outer:
            outer.known_lost = True
            with lock(backend, "k", reentrant=True):
                entered.append(1)
        assert not entered

    def test_of_a_lost_lock_is_not_entered_again_in_asyncio(
        self, syncguard_redis: RedisServer
    ) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            with pytest.raises(LockLost):
                async with backend.lock("k") as outer:
                    outer.known_lost = True
                    await backend.lock("k", reentrant=True).__aenter__()

        run(syncguard_redis, body)

    def test_can_be_kept_from_inside(self, backend: RedisBackend) -> None:
        with lock(backend, "k"), lock(backend, "k", reentrant=True) as inner:
            inner.keep()
        assert backend.is_locked("k")

    def test_works_inside_of_an_adopted_lock(self, backend: RedisBackend) -> None:
        acquired = backend.acquire("k")
        assert isinstance(acquired, Acquired)
        with hold(backend, acquired) as outer, lock(backend, "k", reentrant=True) as inner:
            assert inner is outer is current_lock()
        assert not backend.is_locked("k")

    def test_is_free_again_after_a_body_that_raised(self, backend: RedisBackend) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), lock(backend, "k"):
                with lock(backend, "k", reentrant=True):
                    raise ZeroDivisionError
            assert current_lock() is None
            assert not backend.is_locked("k")


class TestADecoratedFunction:
    def test_that_calls_itself_is_refused(self, backend: RedisBackend) -> None:
        @lock(backend, "k")
        def descend(depth: int) -> int:
            return descend(depth - 1) if depth else 0

        with pytest.raises(LockError, match="reentrant=True"):
            descend(1)
        assert descend(0) == 0

    def test_that_calls_itself_enters_again(self, backend: RedisBackend) -> None:
        @lock(backend, "k", reentrant=True)
        def fences(depth: int) -> set[str | None]:
            return {current_fence()} | (fences(depth - 1) if depth else set())

        assert fences(3) == {"000000000000001"}
        assert not backend.is_locked("k")

    def test_of_asyncio_that_calls_itself_enters_again(self, syncguard_redis: RedisServer) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            @backend.lock("k", reentrant=True)
            async def fences(depth: int) -> set[str | None]:
                return {current_fence()} | (await fences(depth - 1) if depth else set())

            assert await fences(3) == {"000000000000001"}
            assert not await backend.is_locked("k")

        run(syncguard_redis, body)


class TestOtherCode:
    """Only the same task or thread is the same code; any other has to wait."""

    def test_a_thread_with_a_copied_context_is_refused_like_any_other_caller(
        self, backend: RedisBackend
    ) -> None:
        def enter() -> None:
            with lock(backend, "k", acquisition=ONCE, reentrant=True):
                pass

        with lock(backend, "k"), ThreadPoolExecutor(1) as other:
            error = other.submit(copy_context().run, enter).exception()
        assert code_of(error) == "AcquisitionTimeout"

    def test_a_child_task_is_refused_like_any_other_caller(
        self, syncguard_redis: RedisServer
    ) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            async def enter() -> None:
                async with backend.lock("k", acquisition=ONCE, reentrant=True):
                    pass

            async with backend.lock("k"):
                (error,) = await asyncio.gather(enter(), return_exceptions=True)
            assert code_of(error) == "AcquisitionTimeout"

        run(syncguard_redis, body)

    def test_sibling_tasks_exclude_each_other(self, syncguard_redis: RedisServer) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            inside = most = 0

            async def enter() -> None:
                nonlocal inside, most
                async with backend.lock("k", reentrant=True):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0)
                    inside -= 1

            async with backend.lock("around"):
                await asyncio.gather(*(enter() for _ in range(5)))
            assert most == 1

        run(syncguard_redis, body)

    def test_a_thread_that_runs_after_the_block_acquires_anew(self, backend: RedisBackend) -> None:
        def enter() -> str | None:
            assert current_lock() is None
            with lock(backend, "k"):
                return current_fence()

        with lock(backend, "k"):
            inherited = copy_context()
        with ThreadPoolExecutor(1) as other:
            assert other.submit(inherited.run, enter).result() == "000000000000002"

    def test_the_same_thread_in_a_copied_context_acquires_anew(self, backend: RedisBackend) -> None:
        with lock(backend, "k"):
            inherited = copy_context()
        assert inherited.run(current_lock) is None
        with lock(backend, "k") as again:
            assert inherited.run(current_lock) is None
            assert again.fence == "000000000000002"

    def test_a_task_that_runs_after_the_block_acquires_anew(
        self, syncguard_redis: RedisServer
    ) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            is_released = asyncio.Event()

            async def outlive() -> str | None:
                before = current_fence()
                await is_released.wait()
                assert current_lock() is None
                async with backend.lock("k"):
                    return f"{before} {current_fence()}"

            async with backend.lock("k"):
                task = asyncio.create_task(outlive())
                await asyncio.sleep(0)
            is_released.set()
            assert await task == "000000000000001 000000000000002"

        run(syncguard_redis, body)

    def test_a_blocking_lock_in_two_tasks_of_one_thread_is_not_the_same_code(
        self, backend: RedisBackend
    ) -> None:
        async def enter() -> None:
            with lock(backend, "k", acquisition=ONCE, reentrant=True):
                pass

        async def main() -> None:
            with lock(backend, "k"):
                await asyncio.create_task(enter())

        with pytest.raises(LockError) as caught:
            asyncio.run(main())
        assert code_of(caught.value) == "AcquisitionTimeout"

    def test_a_greenlet_is_refused_like_any_other_caller(self, backend: RedisBackend) -> None:
        greenlet = pytest.importorskip("greenlet")

        def enter() -> str:
            with pytest.raises(LockError) as caught:
                lock(backend, "k", acquisition=ONCE, reentrant=True).__enter__()
            return code_of(caught.value)

        with lock(backend, "k"):
            other = greenlet.greenlet(copy_context().run)
            assert other.switch(enter) == "AcquisitionTimeout"
            with lock(backend, "k", reentrant=True):
                pass


def test_an_asyncio_lock_is_not_held_after_its_block_and_was_not_lost(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        async with backend.lock("k") as held:
            held.ensure_held()
        held.renewed(0, 0, held.expires_at_ms)  # its TTL ends
        assert not held.lost
        with pytest.raises(LockLost, match="its block has ended"):
            held.ensure_held()

    run(syncguard_redis, body)


def test_an_asyncio_lock_object_can_be_used_for_one_block_after_another(
    syncguard_redis: RedisServer,
) -> None:
    async def body(backend: AsyncRedisBackend) -> None:
        mine = backend.lock("k")
        async with mine as first:
            pass
        async with mine as second:
            assert second.fence > first.fence

    run(syncguard_redis, body)


class TestTheCurrentLock:
    def test_is_that_of_the_innermost_block(self, backend: RedisBackend) -> None:
        assert (current_lock(), current_fence()) == (None, None)
        with lock(backend, "a") as a:
            with lock(backend, "b") as b, lock(backend, "a", reentrant=True):
                assert current_lock() is a
            with lock(backend, "b") as b:
                assert current_lock() is b
                assert current_fence() == b.fence
            assert current_lock() is a
        assert (current_lock(), current_fence()) == (None, None)

    def test_is_that_of_the_innermost_block_in_asyncio(self, syncguard_redis: RedisServer) -> None:
        async def body(backend: AsyncRedisBackend) -> None:
            # Kept here: a block ends at the latest when its lock object is garbage-collected.
            outer, inner = backend.lock("a"), backend.lock("b")
            again = backend.lock("a", reentrant=True)
            async with outer as a:
                async with inner as b:
                    async with again:
                        assert current_lock() is a
                    assert current_lock() is b
                    assert current_fence() == b.fence
                assert current_lock() is a
            assert (current_lock(), current_fence()) == (None, None)

        run(syncguard_redis, body)

    def test_is_not_one_whose_exit_was_interrupted(self, backend: RedisBackend) -> None:
        """Only the end of the lock object shows this; the lock is held until its TTL ends."""
        lock(backend, "k", ttl_ms=60_000).__enter__()
        gc.collect()
        assert current_lock() is None
        with pytest.raises(LockError) as caught:
            lock(backend, "k", acquisition=ONCE).__enter__()
        assert caught.value.code == "AcquisitionTimeout"

    def test_is_not_one_whose_block_did_not_start(self, backend: RedisBackend) -> None:
        with backend.acquire("k"), pytest.raises(LockError):  # type: ignore[union-attr]
            lock(backend, "k", acquisition=ONCE).__enter__()
        assert current_lock() is None

    def test_is_inherited_by_threads_and_tasks_while_it_is_held(
        self, backend: RedisBackend, syncguard_redis: RedisServer
    ) -> None:
        with lock(backend, "k") as held, ThreadPoolExecutor(1) as other:
            assert other.submit(current_lock).result() is None
            assert other.submit(copy_context().run, current_lock).result() is held

        async def body(backend: AsyncRedisBackend) -> None:
            async def ask() -> object:
                return current_lock()

            async with backend.lock("k") as held:
                assert await asyncio.create_task(ask()) is held

        run(syncguard_redis, body)

    def test_is_right_when_blocks_are_left_in_another_order(self, backend: RedisBackend) -> None:
        first, second = lock(backend, "first"), lock(backend, "second")
        one, two = first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert current_lock() is two
        with lock(backend, "first") as again:
            assert again.fence > one.fence
        second.__exit__(None, None, None)
        assert current_lock() is None

    def test_is_not_one_that_its_outer_block_released(self, backend: RedisBackend) -> None:
        with ExitStack() as late:
            with lock(backend, "k"):
                late.enter_context(lock(backend, "k", reentrant=True))
            assert current_lock() is None
            with lock(backend, "k") as afresh:
                assert afresh.fence == "000000000000002"
        assert current_lock() is None

    def test_is_none_after_the_block_is_left_in_another_context(
        self, backend: RedisBackend
    ) -> None:
        block = lock(backend, "k")
        copy_context().run(block.__enter__)
        assert current_lock() is None
        block.__exit__(None, None, None)
        inside = lock(backend, "k")
        inside.__enter__()
        copy_context().run(inside.__exit__, None, None, None)
        assert current_lock() is None
        with lock(backend, "k") as again:
            assert current_lock() is again

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_of_a_parent_process_is_not_that_of_a_forked_child(self, backend: RedisBackend) -> None:
        with lock(backend, "k"):
            pid = os.fork()
            if not pid:
                try:
                    assert current_lock() is None
                    with pytest.raises(LockError) as caught:
                        lock(backend, "k", acquisition=ONCE, reentrant=True).__enter__()
                    os._exit(0 if caught.value.code == "AcquisitionTimeout" else 2)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert current_lock() is not None


def test_reentrant_is_true_or_false(backend: RedisBackend) -> None:
    with pytest.raises(LockError, match="reentrant must be True or False"):
        lock(backend, "k", reentrant="yes")  # type: ignore[arg-type]
