"""Faults of Redis, of the network before it, of the workers, of Sentinel and of a cluster."""

from __future__ import annotations

import signal
import time
from random import Random

from history.fault import Fault, Workers
from history.stores import OneRedis, RedisBehindRelay, RedisClusterStore, RedisWithSentinel

# -- one Redis ------------------------------------------------------------------------------------


class NoFault(Fault[OneRedis]):
    name = "no fault"
    make_store = OneRedis

    def strike(self, *_: object) -> None: ...


class RedisStopped(Fault[OneRedis]):
    """SIGSTOP and SIGCONT, for less and for more than a TTL."""

    name = "Redis stopped and continued"
    make_store = OneRedis

    def strike(self, store: OneRedis, _workers: Workers, random: Random, ttl_ms: int) -> None:
        with store.server.paused():
            time.sleep(random.uniform(0.1, 2.5) * ttl_ms / 1000)


class RedisKilled(Fault[OneRedis]):
    """kill -9 and a restart, with everything on disk."""

    name = "Redis killed -9, appendfsync always"

    @staticmethod
    def make_store() -> OneRedis:
        return OneRedis("always")

    def strike(self, store: OneRedis, _workers: Workers, random: Random, ttl_ms: int) -> None:
        store.server.kill()
        time.sleep(random.uniform(0, 1.2) * ttl_ms / 1000)
        store.server.restart()


class RedisKilledEverysec(RedisKilled):
    name = "Redis killed -9, appendfsync everysec"
    keeps_data = False

    @staticmethod
    def make_store() -> OneRedis:
        return OneRedis("everysec")


class RedisKilledWithoutAof(RedisKilled):
    name = "Redis killed -9, no AOF"
    keeps_data = False

    @staticmethod
    def make_store() -> OneRedis:
        return OneRedis()


class ClientsKilled(Fault[OneRedis]):
    name = "CLIENT KILL"
    make_store = OneRedis
    strikes = 40

    def strike(self, store: OneRedis, *_: object) -> None:
        with store.server.client() as client:
            client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")


class ScriptsFlushed(Fault[OneRedis]):
    name = "SCRIPT FLUSH"
    make_store = OneRedis
    strikes = 40

    def strike(self, store: OneRedis, *_: object) -> None:
        with store.server.client() as client:
            client.script_flush()


class MemoryFull(Fault[OneRedis]):
    """Redis refuses everything that needs memory, but still deletes."""

    name = "full memory"
    make_store = OneRedis

    def strike(self, store: OneRedis, _workers: Workers, random: Random, ttl_ms: int) -> None:
        with store.server.client() as client:
            client.config_set("maxmemory", "1")
            time.sleep(random.uniform(0.1, 2.0) * ttl_ms / 1000)
            client.config_set("maxmemory", "0")


class EverythingFlushed(Fault[OneRedis]):
    name = "FLUSHALL"
    keeps_data = False
    make_store = OneRedis

    def strike(self, store: OneRedis, *_: object) -> None:
        with store.server.client() as client:
            client.flushall()


# -- the network ----------------------------------------------------------------------------------


class RepliesDelayed(Fault[RedisBehindRelay]):
    name = "proxy delays replies"
    make_store = RedisBehindRelay

    def strike(
        self, store: RedisBehindRelay, _workers: Workers, random: Random, ttl_ms: int
    ) -> None:
        with store.relay.doing("delay", random.uniform(0.01, 0.6) * ttl_ms / 1000):
            time.sleep(random.uniform(0.5, 1.0))


class RepliesLost(Fault[RedisBehindRelay]):
    """The server executes the request, the reply is dropped, and the connection closed."""

    name = "proxy drops replies after execution"
    make_store = RedisBehindRelay
    strikes = 20

    def strike(
        self, store: RedisBehindRelay, _workers: Workers, random: Random, _ttl_ms: int
    ) -> None:
        with store.relay.doing("lose replies"):
            time.sleep(random.uniform(0.005, 0.15))


class ConnectionsCut(Fault[RedisBehindRelay]):
    """All connections close, some in the middle of a reply."""

    name = "proxy cuts connections"
    make_store = RedisBehindRelay
    strikes = 20

    def strike(self, store: RedisBehindRelay, _workers: Workers, random: Random, _: int) -> None:
        with store.relay.doing("cut replies"):
            time.sleep(random.uniform(0, 0.03))
            store.relay.cut_all()


class RequestsSwallowed(Fault[RedisBehindRelay]):
    """Requests vanish, and the connections stay open."""

    name = "proxy swallows requests"
    make_store = RedisBehindRelay

    def strike(
        self, store: RedisBehindRelay, _workers: Workers, random: Random, ttl_ms: int
    ) -> None:
        with store.relay.doing("swallow requests"):
            time.sleep(random.uniform(0.05, 1.5) * ttl_ms / 1000)


# -- the workers ----------------------------------------------------------------------------------


class WorkersStopped(Fault[OneRedis]):
    """SIGSTOP for longer than a TTL, then SIGCONT."""

    name = "worker stopped longer than its TTL"
    make_store = OneRedis

    def strike(self, _store: OneRedis, workers: Workers, random: Random, ttl_ms: int) -> None:
        pid = workers.send_signal(signal.SIGSTOP, random)
        time.sleep(random.uniform(1.1, 2.0) * ttl_ms / 1000)
        workers.continue_one(pid)


class WorkersKilled(Fault[OneRedis]):
    name = "worker killed -9"
    make_store = OneRedis

    def strike(self, _store: OneRedis, workers: Workers, random: Random, _ttl_ms: int) -> None:
        workers.replace_one(random)


class WorkersForked(Fault[OneRedis]):
    """Workers fork while they hold locks: the workers do it themselves."""

    name = "worker forks while it holds"
    make_store = OneRedis
    forks = True

    def strike(self, *_: object) -> None: ...


# -- Sentinel and cluster -------------------------------------------------------------------------


class SentinelKill(Fault[RedisWithSentinel]):
    """The master is killed -9; the replica, which may be behind, becomes the master."""

    name = "Sentinel fail-over by kill"
    keeps_data = False
    make_store = RedisWithSentinel
    strikes = 2
    min_seconds = 10.0

    def strike(self, store: RedisWithSentinel, *_: object) -> None:
        store.servers.bring_back(store.servers.kill_master())


class SentinelCommand(SentinelKill):
    """SENTINEL FAILOVER: the old master accepts writes until it is told to be a replica."""

    name = "Sentinel fail-over by command"
    strikes = 1

    def strike(self, store: RedisWithSentinel, *_: object) -> None:
        store.servers.fail_over_by_command()


class SentinelKillMinReplicas(SentinelKill):
    name = "Sentinel fail-over by kill, min-replicas-to-write 1"

    @staticmethod
    def make_store() -> RedisWithSentinel:
        return RedisWithSentinel(min_replicas=True)


class SentinelCommandMinReplicas(SentinelCommand):
    name = "Sentinel fail-over by command, min-replicas-to-write 1"

    @staticmethod
    def make_store() -> RedisWithSentinel:
        return RedisWithSentinel(min_replicas=True)


class SentinelKillConfirmed(SentinelKill):
    """The replica that becomes the master has every lock and every extension that counts."""

    name = "Sentinel fail-over by kill, min_replicas=1"
    keeps_data = True

    @staticmethod
    def make_store() -> RedisWithSentinel:
        return RedisWithSentinel(confirmed=True)


class SentinelCommandConfirmed(SentinelCommand):
    """The old master grants nothing that counts: no replica confirms it."""

    name = "Sentinel fail-over by command, min_replicas=1"
    keeps_data = True

    @staticmethod
    def make_store() -> RedisWithSentinel:
        return RedisWithSentinel(confirmed=True)


class ClusterCommand(Fault[RedisClusterStore]):
    """CLUSTER FAILOVER: the master stops writing until its replica has everything."""

    name = "cluster fail-over by command"
    make_store = RedisClusterStore
    strikes = 3
    min_seconds = 8.0

    def strike(self, store: RedisClusterStore, *_: object) -> None:
        store.servers.fail_over_by_command()


class ClusterKill(ClusterCommand):
    name = "cluster fail-over by kill"
    keeps_data = False
    strikes = 2

    def strike(self, store: RedisClusterStore, *_: object) -> None:
        store.servers.kill_master()


class ClusterKillConfirmed(ClusterKill):
    name = "cluster fail-over by kill, min_replicas=1"
    keeps_data = True

    @staticmethod
    def make_store() -> RedisClusterStore:
        return RedisClusterStore(confirmed=True)


class SlotsMigrated(ClusterCommand):
    """The slot of a key moves to another node and back, key by key."""

    name = "cluster slot migration"
    strikes = 12

    def strike(
        self, store: RedisClusterStore, _workers: Workers, random: Random, _ttl_ms: int
    ) -> None:
        store.servers.migrate(store.slot_of(f"key-{random.randrange(3)}"))
