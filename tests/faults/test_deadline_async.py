"""timeout_ms bounds the whole of aio.lock(), also connecting and the wait for a connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from relay import SlowRelay

from syncguard import Acquisition, LockError, NetworkTimeout, aio
from syncguard._backend.deadline import Deadline
from syncguard.redis import AsyncRedisBackend
from syncguard.redis._transport.connections import take_async
from syncguard.redis._transport.runner_async import within

BRIEF = Acquisition(timeout_ms=700)
SOON_S = 20
"""Far above the time-out of lock(), and below every time-out of the clients used here."""

POOLS = pytest.mark.parametrize(
    "pool", [{}, {"max_connections": 4}], ids=["shared connection", "small pool"]
)


@asynccontextmanager
async def backend_on(port, **options):
    patient = {"socket_timeout": 60, "socket_connect_timeout": 60, "retry": Retry(NoBackoff(), 3)}
    async with (
        redis.asyncio.Redis(host="127.0.0.1", port=port, **patient, **options) as client,
        AsyncRedisBackend(client) as backend,
    ):
        yield backend


async def code_of_failed_lock(backend):
    """The code of the error that ``lock()`` raises, which must take less than ``SOON_S``."""
    with pytest.raises(LockError) as caught:
        await asyncio.wait_for(aio.lock(backend, "k", acquisition=BRIEF).__aenter__(), SOON_S)
    return caught.value.code


@POOLS
def test_asyncio_a_slow_handshake_counts(syncguard_redis, pool):
    async def main():
        async with backend_on(relay.port, client_name="slow", db=1, **pool) as backend:
            return await code_of_failed_lock(backend)

    with SlowRelay(syncguard_redis.port) as relay:
        assert asyncio.run(main()) == "NetworkTimeout"


@POOLS
def test_asyncio_an_address_that_does_not_answer_does_not_hold_lock_up(silent_address, pool):
    async def main():
        async with backend_on(silent_address[1], **pool) as backend:
            return await code_of_failed_lock(backend)

    assert asyncio.run(main()) == "NetworkTimeout"


def test_asyncio_a_pool_that_waits_does_not_hold_lock_up(syncguard_redis):
    async def main():
        pool = redis.asyncio.BlockingConnectionPool(
            port=syncguard_redis.port, max_connections=1, timeout=60
        )
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            backend = AsyncRedisBackend(client)
            taken = await take_async(pool)
            code = await code_of_failed_lock(backend)
            await pool.release(taken)
            async with aio.lock(backend, "k"):
                assert await backend.is_locked("k")
        await pool.disconnect()
        return code

    assert asyncio.run(main()) == "NetworkTimeout"


def test_a_call_that_fails_after_its_deadline_leaves_no_unread_error():
    """redis-py sometimes ends a cancelled task with an error of the connection."""
    unread = []

    async def fail_when_cancelled():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LockError("ServiceUnavailable") from None

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: unread.append(told))
        with pytest.raises(NetworkTimeout):
            await within(Deadline.after(10), fail_when_cancelled())

    asyncio.run(main())
    gc.collect()
    assert unread == []


def test_a_call_that_fails_while_its_event_loop_ends_is_not_logged():
    """redis-py sometimes swallows the first cancellation. ``asyncio.run`` cancels again."""
    told = []

    async def fail_when_cancelled_twice():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LockError("ServiceUnavailable") from None

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))
        with pytest.raises(NetworkTimeout):
            await within(Deadline.after(10), fail_when_cancelled_twice())

    asyncio.run(main())
    assert told == []


def test_a_call_whose_deadline_has_passed_does_not_begin():
    begun = []

    async def begin():
        begun.append(1)

    async def main():
        with pytest.raises(NetworkTimeout):
            await within(Deadline.after(-1), begin())

    asyncio.run(main())
    gc.collect()  # Python would warn of a coroutine that was never awaited
    assert begun == []
