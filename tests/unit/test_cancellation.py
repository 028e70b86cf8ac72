"""settle(): an operation that runs to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from syncguard._lock.cancellation import settle


def test_an_operation_that_does_not_wait_needs_no_task():
    async def main():
        tasks = []

        async def operation():
            tasks.append(asyncio.current_task())
            return 7

        assert await settle(operation()) == 7
        assert tasks == [asyncio.current_task()]

    asyncio.run(main())


def test_an_operation_that_waits_is_completed_although_the_caller_is_cancelled():
    async def main():
        steps = []

        async def operation():
            for number in range(3):
                await asyncio.sleep(0.001)
                steps.append(number)

        caller = asyncio.ensure_future(settle(operation()))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert steps == [0, 1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 2])
def test_the_result_or_the_error_of_the_operation_reaches_the_caller(turns):
    async def main():
        async def operation(error=None):
            for _ in range(turns):
                await asyncio.sleep(0)
            if error is not None:
                raise error
            return "done"

        assert await settle(operation()) == "done"
        with pytest.raises(ZeroDivisionError):
            await settle(operation(ZeroDivisionError()))

    asyncio.run(main())


def test_an_error_of_what_the_operation_waits_for_reaches_the_operation():
    async def main():
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.set_exception(KeyError("k"))

        async def operation():
            try:
                await asyncio.sleep(0)
                await waited_for
            except KeyError:
                return "caught"

        assert await settle(operation()) == "caught"

    asyncio.run(main())
