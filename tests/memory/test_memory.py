"""Locks in memory: a clock that tests move, stores that backends share, and waiters."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from syncguard import Acquisition, AcquisitionTimeout, InvalidArgument, LockLost, aio, lock
from syncguard.backend import GivenLocation, Refusal, SettingProblem
from syncguard.backends import async_from_url, from_url
from syncguard.memory import AsyncMemoryBackend, MemoryBackend, MemoryStore
from syncguard.testing import ManualClock

NO_RETRY = Acquisition(max_retries=0, timeout_ms=0)
PATIENT = Acquisition(retry_delay_ms=60_000, timeout_ms=60_000)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def backend(clock):
    return MemoryBackend(clock=clock)


def test_a_lock_is_gone_at_the_end_of_its_ttl_to_the_millisecond(backend, clock):
    held = backend.acquire("k", ttl_ms=5_000)
    clock.advance(4_999)
    assert backend.is_locked("k")
    assert not backend.acquire("k")
    clock.advance(1)
    assert not backend.is_locked("k")
    assert backend.lookup(lock_id=held.lock_id) is None
    assert not backend.extend(held.lock_id)
    assert not backend.release(held.lock_id)
    assert backend.acquire("k")


def test_setting_the_clock_of_the_machine_ends_no_lock(monkeypatch):
    backend = MemoryBackend()
    held = backend.acquire("k", ttl_ms=60_000)
    assert abs(held.expires_at_ms - time.time() * 1000 - 60_000) < 60_000
    ahead_s = time.time() + 3_600
    monkeypatch.setattr(time, "time", lambda: ahead_s)
    monkeypatch.setattr(time, "time_ns", lambda: int(ahead_s * 1e9))
    assert backend.is_locked("k")
    assert backend.extend(held.lock_id)


def test_an_extended_lock_lasts_from_the_moved_clock(backend, clock):
    held = backend.acquire("k", ttl_ms=5_000)
    clock.advance(4_000)
    assert backend.extend(held.lock_id, 5_000).expires_at_ms == clock.now_ms + 5_000
    clock.advance(4_999)
    assert backend.is_locked("k")


def test_a_block_that_lasts_longer_than_its_ttl_raises_lock_lost(backend, clock):
    with pytest.raises(LockLost):
        with lock(backend, "k", ttl_ms=5_000):
            clock.advance(5_000)


def test_the_clock_wakes_a_waiter(backend, clock):
    backend.acquire("k", ttl_ms=600_000)
    with ThreadPoolExecutor() as threads:
        waiter = backend.open_waiter("k")
        assert isinstance(waiter.attempt(5_000, None, 60_000), Refusal)
        waiting = threads.submit(waiter.wait, 60_000, None)
        clock.advance(600_000)
        assert waiting.result() is True


@pytest.mark.parametrize("ms", [-1, 0.5, True, None])
def test_a_clock_advances_by_whole_milliseconds(clock, ms):
    with pytest.raises(InvalidArgument):
        clock.advance(ms)


def test_a_new_backend_has_a_store_of_its_own():
    assert MemoryBackend().acquire("k")
    assert MemoryBackend().acquire("k")


def test_a_blocking_and_an_asyncio_backend_share_a_store():
    blocking = MemoryBackend()
    other = AsyncMemoryBackend(store=blocking.store)
    with lock(blocking, "k"):
        with pytest.raises(AcquisitionTimeout):
            asyncio.run(enter(other, NO_RETRY))
    assert int(asyncio.run(enter(other, NO_RETRY))) == 2


async def enter(backend, acquisition):
    async with aio.lock(backend, "k", acquisition=acquisition) as held:
        return held.fence


def test_a_release_on_a_thread_wakes_a_waiter_of_asyncio():
    blocking = MemoryBackend()
    held = blocking.acquire("k")

    async def main():
        backend = AsyncMemoryBackend(store=blocking.store)
        waiter = backend.open_waiter("k")
        assert isinstance(await waiter.attempt(5_000, None, 60_000), Refusal)
        waiting = asyncio.ensure_future(waiter.wait(60_000, None))
        await asyncio.sleep(0)
        await asyncio.to_thread(held.release)
        assert await waiting is True

    asyncio.run(main())


def test_a_waiter_of_a_loop_that_has_ended_does_not_disturb_a_release():
    blocking = MemoryBackend()
    held = blocking.acquire("k")
    loop = asyncio.new_event_loop()
    waiter = AsyncMemoryBackend(store=blocking.store).open_waiter("k")
    waiting = loop.create_task(waiter.wait(60_000, None))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert held.release().ok
    waiting._log_destroy_pending = False  # the loop ended before its task: that is the test


def test_eight_threads_lose_no_update():
    backend, numbers = MemoryBackend(), [0]

    def work():
        for _ in range(50):
            with lock(backend, "k", acquisition=PATIENT):
                number = numbers[0]
                threading.Event().wait(0.0001)
                numbers[0] = number + 1

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(work) for _ in range(8)]:
            future.result()
    assert numbers == [400]


def test_the_store_of_a_url_is_shared_by_its_name():
    here, there = from_url("memory://here"), from_url("memory://there")
    try:
        with here.lock("k"):
            assert not from_url("memory://here").acquire("k")
            assert there.acquire("k")

            async def refused():
                return await async_from_url("memory://here").acquire("k")

            assert not asyncio.run(refused())
    finally:
        for backend in (here, there):
            backend.store.clear()


def test_a_cleared_store_has_no_locks_and_no_fences(backend):
    backend.acquire("k")
    backend.store.clear()
    assert backend.count_live_locks() == backend.count_fence_counters() == 0
    assert backend.acquire("k").fence == "000000000000001"


def test_clearing_the_store_wakes_its_waiters(backend):
    backend.acquire("k")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(backend.open_waiter("k").wait, 60_000, None)
        backend.store.clear()
        assert waiting.result() is True


def test_prefixes_separate_locks_and_their_lists(clock):
    shop = MemoryBackend(clock=clock, key_prefix="shop")
    office = MemoryBackend(store=shop.store, key_prefix="shop:office")
    held = office.acquire("k")
    assert shop.acquire("k")
    assert shop.count_live_locks() == office.count_live_locks() == 1
    assert shop.count_fence_counters() == office.count_fence_counters() == 1
    assert not shop.release(held.lock_id)
    assert office.release(held.lock_id)


def test_many_locks_are_released_and_extended_together(backend, clock):
    locks = [backend.acquire(f"lock {nth}", ttl_ms=5_000) for nth in range(3)]
    ids = [each.lock_id for each in locks]
    locks[1].release()
    extended = backend.extend_many([(lock_id, 9_000) for lock_id in ids])
    assert [result.expires_at_ms for result in extended] == [
        clock.now_ms + 9_000,
        None,
        clock.now_ms + 9_000,
    ]
    assert [result.ok for result in backend.release_many(ids)] == [True, False, True]


def test_the_fence_floor_is_the_clock(clock):
    backend = MemoryBackend(clock=clock, fence_floor="clock")
    assert int(backend.acquire("k").fence) == clock.now_ms * 10


def test_a_waiter_undoes_its_last_attempt(backend):
    waiter = backend.open_waiter("k")
    waiter.undo()  # there was none
    waiter.attempt(5_000, None, 0)
    waiter.undo()
    assert not backend.is_locked("k")


def test_setup_and_close_can_be_called_twice(backend):
    for _ in range(2):
        backend.setup()
        backend.close()

    async def main():
        async with AsyncMemoryBackend(store=backend.store) as other:
            await other.setup()
            await other.setup()

    asyncio.run(main())


def test_a_forked_child_has_a_copy_of_the_locks_and_can_use_it(backend):
    held = backend.acquire("k")
    with backend.store.transaction():  # as if another thread were in an operation
        pid = os.fork()
        if pid == 0:
            os._exit(0 if backend.release(held.lock_id).ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert backend.is_locked("k")


@pytest.mark.parametrize("location", [None, 1, "redis://localhost", "memory"])
def test_a_location_in_settings_is_a_url(location):
    found = MemoryBackend.read_location(GivenLocation(location))
    assert isinstance(found, SettingProblem)
    assert "memory://" in found.expected


@pytest.mark.parametrize("kind", ["cache", "database"])
def test_a_cache_or_a_database_is_no_location(kind):
    found = AsyncMemoryBackend.read_location(GivenLocation(**{kind: {}}))
    assert isinstance(found, SettingProblem)
    assert found.setting == kind.upper()


def test_two_locations_of_one_name_are_one_store():
    stores = [
        MemoryBackend.read_location(GivenLocation(f"memory://{name}")).store for name in "aab"
    ]
    assert stores[0] == stores[1] != stores[2]


@pytest.mark.parametrize(
    "options", [{"clock": 1}, {"store": 1}, {"store": MemoryStore(), "clock": ManualClock()}]
)
def test_bad_options_are_refused(options):
    for kind in (MemoryBackend, AsyncMemoryBackend):
        with pytest.raises(InvalidArgument):
            kind(**options)


def test_a_url_of_another_scheme_is_refused():
    for kind in (MemoryBackend, AsyncMemoryBackend):
        with pytest.raises(InvalidArgument, match="memory://"):
            kind.from_url("redis://localhost")


def test_no_text_contains_the_key_or_the_lock_id(backend):
    held = backend.acquire("secret-invoice")
    with backend.store.transaction() as transaction:
        row = transaction.find_by_id(held.lock_id)
    texts = [repr(each) for each in (backend, row, backend.acquire_operation("secret", 5, None))]
    assert not any("secret" in text or held.lock_id in text for text in texts)
    assert texts[2] == "<Operation acquire>"


def test_memory_needs_no_redis():
    script = """if True:
        import sys
        sys.modules["redis"] = None
        import syncguard, syncguard.aio, syncguard.testing, syncguard.testing.plugin
        from syncguard.backends import from_url
        with from_url("memory://").lock("k") as held:
            print(held.fence)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("000000000000001\n", "")
