"""What a run finds in a store at its end: names and locks that outlive every TTL."""

from __future__ import annotations

from history.stores import unlimited_names
from history.stores_of_sql import long_lived
from syncguard.memory import MemoryBackend
from syncguard.redis import RedisBackend
from syncguard.testing import RedisServer


def test_a_name_without_a_ttl_is_found_but_for_those_that_are_kept(
    syncguard_redis: RedisServer,
) -> None:
    with syncguard_redis.client() as client, RedisBackend(client) as backend:
        assert backend.acquire("k", 60_000)
        assert unlimited_names(client) == []
        client.set("syncguard:left", "1")
        assert unlimited_names(client) == ["syncguard:left"]


def test_a_lock_that_nobody_asked_for_so_long_is_found() -> None:
    with MemoryBackend() as backend:
        assert backend.acquire("short", 30_000)
        assert backend.acquire("long", 3_600_000)
        assert long_lived(backend) == ["long"]
