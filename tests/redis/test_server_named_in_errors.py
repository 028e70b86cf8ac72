"""An error names the server by host, port and database, and never contains a credential."""

from __future__ import annotations

import asyncio

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.sentinel import Sentinel

from syncguard import LockError
from syncguard.redis import AsyncRedisBackend, RedisBackend, impatient_options, inspect_server
from syncguard.redis._transport.connections import describe_server
from syncguard.testing import RedisServer

DEAD = "redis://zoe:hunter2@127.0.0.1:1/3"
ONE_TRY = impatient_options()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (DEAD, "127.0.0.1:1, database 3"),
        ("redis://", "localhost:6379, database 0"),
        ("redis://[::1]:7000/1", "[::1]:7000, database 1"),
        ("rediss://cache.example:7001", "cache.example:7001, database 0"),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock, database 2"),
    ],
)
def test_a_server_is_described_by_host_port_and_database(url, place):
    client = redis.Redis.from_url(url)
    assert describe_server(client) == describe_server(client.connection_pool) == place
    assert describe_server(redis.asyncio.Redis.from_url(url)) == place


def test_a_server_behind_sentinel_is_described_by_its_service_name():
    client = Sentinel([("127.0.0.1", 1)]).master_for("orders", password="hunter2", db=2)
    assert describe_server(client) == "the Sentinel service 'orders' of 127.0.0.1:1, database 2"


def test_a_client_without_an_address_has_no_description():
    assert describe_server(object()) == ""


OPERATIONS = {
    "acquire": lambda b: b.acquire("k"),
    "lookup": lambda b: b.lookup(key="k"),
    "listing": lambda b: b.live_locks(),
    "report": inspect_server,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_error_names_the_server_and_no_credential(operation):
    with RedisBackend.from_url(DEAD, **ONE_TRY) as backend, pytest.raises(LockError) as raised:
        operation(backend)
    text = str(raised.value)
    assert text.startswith("Redis at 127.0.0.1:1, database 3, cannot be reached")
    assert "hunter2" not in f"{text} {raised.value!r}"
    assert "zoe" not in text


def test_an_asyncio_error_names_the_server_and_no_credential():
    async def fail():
        async with AsyncRedisBackend.from_url(DEAD, retry=AsyncRetry(NoBackoff(), 0)) as backend:
            await backend.acquire("k")

    with pytest.raises(LockError, match=r"^Redis at 127\.0\.0\.1:1, database 3, ") as raised:
        asyncio.run(fail())
    assert "hunter2" not in f"{raised.value} {raised.value!r}"


def test_a_refused_password_is_not_in_the_error_that_names_the_server():
    with RedisServer(password="right") as server:
        url = server.url.replace("right", "hunter2")
        with RedisBackend.from_url(url, **ONE_TRY) as backend, pytest.raises(LockError) as raised:
            backend.acquire("k")
    assert raised.value.code == "AuthFailed"
    assert str(raised.value).startswith("Redis at 127.0.0.1:")
    assert "hunter2" not in str(raised.value)


def test_a_heartbeat_that_cannot_connect_names_the_server():
    with RedisBackend.from_url(DEAD, **ONE_TRY) as backend, pytest.raises(LockError) as raised:
        backend.open_extend_channel(1_000)
    assert str(raised.value).startswith("Redis at 127.0.0.1:1, database 3, ")
