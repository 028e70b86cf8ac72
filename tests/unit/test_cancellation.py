"""settle(): an operation that runs to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import weakref

import pytest

from syncguard import NetworkTimeout, aio
from syncguard._lock.cancellation import outcome_task, settle
from syncguard.memory import AsyncMemoryBackend


@pytest.fixture(params=[False, True], ids=["in a task", "in the caller's task"])
def at_once(request):
    return request.param


def test_an_operation_that_does_not_wait_needs_no_task():
    async def main():
        tasks = []

        async def operation():
            tasks.append(asyncio.current_task())
            return 7

        assert await settle(operation(), begins_at_once=True) == 7
        assert tasks == [asyncio.current_task()]

    asyncio.run(main())


def test_an_operation_that_waits_needs_no_task_either():
    async def main():
        before = asyncio.all_tasks()
        seen = []
        answer = asyncio.get_running_loop().create_future()

        def reply():
            seen.append(asyncio.all_tasks())
            answer.set_result(7)

        async def operation():
            asyncio.get_running_loop().call_soon(reply)
            return await answer

        assert await settle(operation(), begins_at_once=True) == 7
        assert seen == [before]

    asyncio.run(main())


@pytest.mark.parametrize("cancellations", [1, 3])
def test_an_operation_that_waits_is_completed_although_the_caller_is_cancelled(
    at_once, cancellations
):
    async def main():
        steps = []

        async def operation():
            for number in range(5):
                await asyncio.sleep(0.001)
                steps.append(number)

        caller = asyncio.ensure_future(settle(operation(), begins_at_once=at_once))
        for _ in range(cancellations):
            await asyncio.sleep(0)
            caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert steps == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_what_the_operation_waits_for_is_not_cancelled(at_once):
    async def main():
        answer = asyncio.get_running_loop().create_future()
        got = []

        async def operation():
            got.append(await answer)

        caller = asyncio.ensure_future(settle(operation(), begins_at_once=at_once))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        assert not answer.cancelled()
        answer.set_result("released")
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert got == ["released"]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 2])
def test_the_result_or_the_error_of_the_operation_reaches_the_caller(at_once, turns):
    async def main():
        async def operation(error=None):
            for _ in range(turns):
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)
            if error is not None:
                raise error
            return "done"

        assert await settle(operation(), begins_at_once=at_once) == "done"
        with pytest.raises(ZeroDivisionError):
            await settle(operation(ZeroDivisionError()), begins_at_once=at_once)

    asyncio.run(main())


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_what_the_operation_waits_for_reaches_the_operation(at_once, first):
    async def main():
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.set_exception(KeyError("k"))

        async def operation():
            try:
                if not first:
                    await asyncio.sleep(0)
                await waited_for
            except KeyError:
                return "caught"

        assert await settle(operation(), begins_at_once=at_once) == "caught"

    asyncio.run(main())


async def a_time_limit():
    """Time-outs of asyncio cancel the task in which they began."""
    if hasattr(asyncio, "timeout"):  # from Python 3.11 on
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)
    else:
        await asyncio.wait_for(asyncio.sleep(30), 0.01)


def test_a_time_limit_inside_the_operation_ends_the_operation_not_the_caller():
    async def main():
        async def operation():
            try:
                await a_time_limit()
            except (TimeoutError, asyncio.TimeoutError):
                return "timed out"

        assert await settle(operation()) == "timed out"

    asyncio.run(main())


def test_a_backend_that_limits_its_release_by_asyncio_does_not_cancel_the_block():
    told = []

    class Limited(AsyncMemoryBackend):
        async def release(self, _lock_id):
            try:
                await a_time_limit()
            except (TimeoutError, asyncio.TimeoutError):
                raise NetworkTimeout("the server did not answer") from None

    async def main():
        backend = Limited(on_release_error=lambda error, _context: told.append(error.code))
        async with aio.lock(backend, "k"):
            pass

    asyncio.run(main())
    assert told == ["NetworkTimeout"]


def test_the_error_of_an_outcome_keeps_nothing_of_its_callers_alive():
    """The garbage collector is off in tests: only what is in no cycle goes away."""

    class Local:
        pass

    async def operation():
        raise ValueError

    async def caller(seen):
        local = Local()
        seen.append(weakref.ref(local))
        task = outcome_task(operation())
        await asyncio.wait({task})
        return task.result().get()

    async def main():
        seen = []
        with contextlib.suppress(ValueError):
            await caller(seen)
        await asyncio.sleep(0)
        return seen[0]

    assert asyncio.run(main())() is None
