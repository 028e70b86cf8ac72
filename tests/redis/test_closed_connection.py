"""asyncio: what a call raises whose connection another task closes meanwhile."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio

from syncguard import ServiceUnavailable
from syncguard.redis import AsyncRedisBackend
from syncguard.redis._transport.closed_connection import closed_is_a_fault


def test_a_request_on_a_writer_that_is_being_closed_is_a_fault(syncguard_redis):
    """Until the writer is closed, redis-py keeps it, and takes the connection for open."""

    async def main():
        connection = redis.asyncio.Connection(port=syncguard_redis.port)
        await connection.connect()
        connection._writer.close()
        try:
            with closed_is_a_fault():
                await connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"])
                await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)

    with pytest.raises(redis.ConnectionError):
        asyncio.run(main())


def test_a_call_whose_connection_is_being_closed_says_that_redis_cannot_be_reached(syncguard_redis):
    async def main():
        # A small pool: each call takes a connection of it. Without retries, to see the first error.
        client = redis.asyncio.Redis(
            port=syncguard_redis.port, max_connections=2, retry=None, retry_on_error=[]
        )
        async with client:
            backend = AsyncRedisBackend(client)
            assert await backend.is_locked("k") is False
            (connection,) = client.connection_pool._available_connections
            send = connection.send_packed_command

            async def closed_and_send(packed, **options):
                connection._writer.close()
                await send(packed, **options)

            connection.send_packed_command = closed_and_send
            await backend.is_locked("k")

    with pytest.raises(ServiceUnavailable):
        asyncio.run(main())


@pytest.mark.parametrize("mistake", [lambda: len(5), lambda: (5).missing])
def test_a_mistake_in_the_code_is_raised_as_it_is(mistake):
    with pytest.raises((TypeError, AttributeError), match="int"), closed_is_a_fault():
        mistake()
