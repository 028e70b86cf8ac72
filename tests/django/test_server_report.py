"""The report on a Redis server: its values and its findings."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from same_health import assert_same_health

from syncguard import LockError
from syncguard.redis import (
    AsyncRedisBackend,
    RedisBackend,
    ServerReport,
    inspect_server,
    server_time_ms,
)
from syncguard.redis.server_report import read_report
from syncguard.testing import RedisServer

HEALTHY = ServerReport(
    server="redis",
    version="7.2.4",
    round_trip_ms=0.4,
    clock_offset_ms=3.0,
    aof=True,
    rdb=False,
    maxmemory_policy="noeviction",
    role="primary",
    fence_floor=False,
)
INFO = {
    "redis_version": "7.2.4",
    "aof_enabled": 1,
    "maxmemory_policy": "noeviction",
    "role": "master",
}


def read(info=INFO, save="3600 1"):
    return read_report(
        info, save=save, sent_at_ms=1_000, received_at_ms=1_010, server_ms=1_105, fence_floor=False
    )


def test_a_report_is_made_from_the_replies_of_redis():
    assert read() == dataclasses.replace(HEALTHY, rdb=True, round_trip_ms=10, clock_offset_ms=100)


def test_valkey_is_called_valkey():
    report = read({**INFO, "valkey_version": "8.0.1"})
    assert (report.server, report.version) == ("valkey", "8.0.1")


def test_values_that_redis_does_not_report_are_unknown():
    report = read({}, save=None)
    assert (report.aof, report.rdb, report.maxmemory_policy) == (None, None, None)
    assert (report.version, report.role) == ("unknown", "unknown")


def test_a_healthy_server_has_no_findings():
    assert HEALTHY.findings == ()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "can be evicted"),
        ({"maxmemory_policy": None}, "is unknown"),
        ({"role": "replica"}, "is a replica"),
        ({"aof": False}, "nothing is written to disk"),
        ({"clock_offset_ms": -2_500.0}, "differ by 2.5 s"),
        ({"version": "6.0.16"}, "older than 6.2"),
    ],
)
def test_a_dangerous_configuration_is_a_finding(change, finding):
    [found] = dataclasses.replace(HEALTHY, **change).findings
    assert finding in found


@pytest.mark.parametrize(
    "change",
    [
        {"aof": False, "rdb": True},
        {"aof": False, "fence_floor": True},
        {"aof": None},
        {"version": "unknown"},
        {"version": "8.0"},
        {"clock_offset_ms": 1_200.0, "round_trip_ms": 900.0},
    ],
)
def test_accepted_and_unknown_values_are_no_findings(change):
    assert dataclasses.replace(HEALTHY, **change).findings == ()


def test_a_report_is_read_from_a_real_server(syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url, fence_floor="clock") as backend:
        report = inspect_server(backend)
        assert abs(server_time_ms(backend) - report.clock_offset_ms) > 0
    assert report.role == "primary"
    assert (report.aof, report.rdb, report.fence_floor) == (False, False, True)
    assert report.findings == ()


@pytest.mark.parametrize("decode", [True, False])
def test_the_client_may_decode_replies_or_not(syncguard_redis, decode):
    with syncguard_redis.client(decode_responses=decode) as client:
        backend = RedisBackend(client)
        assert inspect_server(backend).rdb is False
        backend.close()


def test_a_replica_is_recognized(syncguard_redis):
    replica = RedisServer(config=[f"replicaof 127.0.0.1 {syncguard_redis.port}"])
    with replica, RedisBackend.from_url(replica.url) as backend:
        assert inspect_server(backend).role == "replica"


def test_persistence_is_unknown_on_a_server_that_forbids_config():
    with RedisServer(config=['rename-command CONFIG ""']) as server:
        with RedisBackend.from_url(server.url) as backend:
            assert inspect_server(backend).rdb is None


def test_asyncio_the_health_of_a_server_is_that_of_its_blocking_twin(syncguard_redis):
    async def read():
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            await backend.acquire("k", ttl_ms=60_000)
            return await backend.health()

    found = asyncio.run(read())
    with RedisBackend.from_url(syncguard_redis.url) as backend:
        expected = backend.health()
    assert_same_health(found, expected)
    assert found.fields["liveLocks"] == 1


def test_asyncio_a_dead_server_raises_a_lock_error():
    async def read():
        async with AsyncRedisBackend.from_url("redis://:hunter2@127.0.0.1:1/0") as backend:
            await backend.health()

    with pytest.raises(LockError) as raised:
        asyncio.run(read())
    assert raised.value.code == "ServiceUnavailable"
    assert "hunter2" not in f"{raised.value} {raised.value!r}"


def test_a_dead_server_raises_a_lock_error():
    with RedisBackend.from_url("redis://:hunter2@127.0.0.1:1/0") as backend:
        for ask in (inspect_server, server_time_ms):
            with pytest.raises(LockError) as raised:
                ask(backend)
            assert raised.value.code == "ServiceUnavailable"
            assert "hunter2" not in str(raised.value)
