"""The servers that the workers of a run use: one class for each kind of store.

A store knows its address for workers, the names in it that never expire and should, and what a
fault needs to reach it. Another backend is judged by adding a store and its faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import redis
from cluster_servers import ClusterServers
from redis.crc import key_slot
from sentinel_servers import SentinelServers

from history.faulty_relay import FaultyRelay
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.redis.names import Names
from syncguard.testing import RedisServer

if TYPE_CHECKING:
    from typing_extensions import Self


CONFIRMED: Final = "?min_replicas=1&replica_timeout_ms=300"
"""The options of a backend whose locks a replica confirms."""


class Store(Protocol):
    """A store with its servers, which run during the ``with`` block."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    @property
    def address(self) -> str:
        """Where workers find it: see ``backends``."""
        ...

    @property
    def max_processes(self) -> int:
        """How many worker processes may use it: 1 for a store in the memory of a process."""
        ...

    def unlimited(self) -> list[str]:
        """What is stored without an expiry, and should have one. Read at the end of a run."""
        ...


class OneRedis:
    """One server. ``appendfsync`` is "always" or "everysec", or None: it saves nothing."""

    max_processes = 8

    def __init__(self, appendfsync: str | None = None) -> None:
        config = [] if appendfsync is None else [f"appendfsync {appendfsync}"]
        self.server = RedisServer(aof=appendfsync is not None, config=config)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.server.stop()

    @property
    def address(self) -> str:
        return self.server.url

    def unlimited(self) -> list[str]:
        with self.server.client() as client:
            return unlimited_names(client)


class RedisBehindRelay(OneRedis):
    """One server, and a relay between it and the workers."""

    relay: FaultyRelay

    def __enter__(self) -> Self:
        super().__enter__()
        self.relay = FaultyRelay(self.server.port)
        self.relay.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.relay.close()
        super().__exit__(*exc)

    @property
    def address(self) -> str:
        return f"redis://{self.relay.host}:{self.relay.port}/0"


class RedisWithSentinel:
    """A master, a replica and a sentinel; with ``min-replicas-to-write`` or without.

    ``confirmed``: with ``min_replicas=1`` of the backend.
    """

    max_processes = 8

    def __init__(self, *, min_replicas: bool = False, confirmed: bool = False) -> None:
        lines = ["min-replicas-to-write 1", "min-replicas-max-lag 2"] if min_replicas else []
        self.servers = SentinelServers(lines)
        self._query = CONFIRMED if confirmed else ""

    def __enter__(self) -> Self:
        self.servers.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.servers.__exit__(*exc)

    @property
    def address(self) -> str:
        host, port = self.servers.address
        return f"redis-sentinel://{host}:{port}{self._query}"

    def unlimited(self) -> list[str]:
        with self.servers.master.client() as client:
            return unlimited_names(client)


class RedisClusterStore:
    """A master with a replica, and two masters that own one slot each and vote."""

    max_processes = 8

    def __init__(self, *, confirmed: bool = False) -> None:
        self.servers = ClusterServers(with_replica=True)
        self._query = CONFIRMED if confirmed else ""

    def __enter__(self) -> Self:
        self.servers.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.servers.__exit__(*exc)

    @property
    def address(self) -> str:
        return f"redis-cluster://127.0.0.1:{self.servers.port}{self._query}"

    @staticmethod
    def slot_of(key: str) -> int:
        names = Names(DEFAULT_KEY_PREFIX, clustered=True).of(key)
        slot: int = key_slot(names.lock.encode())
        return slot

    def unlimited(self) -> list[str]:
        parts = urlsplit(self.address)
        with redis.RedisCluster(host=str(parts.hostname), port=int(parts.port or 0)) as client:
            return unlimited_names(client)


def unlimited_names(client: redis.Redis | redis.RedisCluster) -> list[str]:
    """The names without a TTL, but for those that are kept on purpose."""
    return [name for name in _names(client) if not _is_kept(name) and client.pttl(name) == -1]


def _names(client: redis.Redis | redis.RedisCluster) -> Iterator[str]:
    for name in client.scan_iter(count=1_000):
        yield name.decode()


def _is_kept(name: str) -> bool:
    """Fence counters, the sorted set of live locks, and the number of counters never expire."""
    return ":fence:" in name or name.endswith((":id::live", ":id::fences"))
