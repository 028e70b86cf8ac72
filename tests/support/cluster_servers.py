"""A Redis Cluster for tests: one node that owns (nearly) all slots, or also voters and a replica.

A master is replaced only if most masters agree. So with a replica there are two more masters, which
own one slot each: the last two.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import redis
from wait_until import wait_until

from syncguard.testing import RedisServer

if TYPE_CHECKING:
    from typing_extensions import Self

SLOTS = 16_384
VOTERS_SLOT = SLOTS - 2
"""The slot of the first voter, in a cluster with a replica."""
_CONFIG = ["cluster-enabled yes", "repl-diskless-sync-delay 0"]

_PATIENT_MS = 600_000
"""Without a replica: the other nodes go on if one is stopped."""


class ClusterServers:
    """Run during the ``with`` block.

    With a replica, a node is down for the others if it was silent for ``node_timeout_ms``. Tests
    that kill no master need a long one: on a busy machine a healthy node is silent for a while.
    """

    def __init__(
        self, *, with_replica: bool = False, masters: int = 1, node_timeout_ms: int = 1_000
    ) -> None:
        self._has_replica = with_replica
        count = 4 if with_replica else masters
        silence_ms = node_timeout_ms if with_replica else _PATIENT_MS
        config = [*_CONFIG, f"cluster-node-timeout {silence_ms}"]
        self._servers = [RedisServer(config=config) for _ in range(count)]
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for server in self._servers:
                opened.enter_context(server)
            self._nodes = [opened.enter_context(server.client()) for server in self._servers]
            self._give_slots()
            if len(self._servers) > 1:
                self._join()
            for node in self._nodes:
                wait_until(lambda node=node: _info(node)["cluster_state"] == "ok", 60)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._opened.close()

    @property
    def node(self) -> RedisServer:
        """A node that no method of this class stops."""
        return self._servers[-1]

    @property
    def masters(self) -> list[RedisServer]:
        """All nodes of a cluster without a replica."""
        return list(self._servers)

    @property
    def port(self) -> int:
        return self.node.port

    def client_settings(self, timeout_s: float) -> dict[str, Any]:
        """For a client of redis-py, blocking or asyncio."""
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        return {"host": "127.0.0.1", "port": self.port, **timeouts}

    def fail_over_by_command(self) -> None:
        """The replica becomes the master of its slots, without any loss."""
        replica = self._replica()
        wait_until(lambda: _is_in_sync(self._nodes[replica]), 60)
        asked_at = float("-inf")

        def has_taken_over() -> bool:
            nonlocal asked_at
            node = self._nodes[replica]
            if _role(node) == "master":
                return True
            if time.monotonic() > asked_at + 6:  # Redis gives up after 5 s on a busy machine
                node.execute_command("CLUSTER FAILOVER")
                asked_at = time.monotonic()
            return False

        wait_until(has_taken_over, 60)
        wait_until(self.is_settled, 60)

    def kill_master(self) -> None:
        """kill -9; the replica becomes the master, and the killed one its replica."""
        replica = self._replica()
        killed = 1 - replica
        wait_until(lambda: _is_in_sync(self._nodes[replica]), 60)
        self._servers[killed].kill()
        wait_until(lambda: _role(self._nodes[replica]) == "master", 60)
        self._servers[killed].restart()
        wait_until(self.is_settled, 60)

    @contextlib.contextmanager
    def master_hangs(self) -> Iterator[None]:
        """The master is stopped during the block, and the replica has become the master."""
        replica = self._replica()
        wait_until(lambda: _is_in_sync(self._nodes[replica]), 60)
        with self._servers[1 - replica].paused():
            wait_until(lambda: _role(self._nodes[replica]) == "master", 60)
            yield
        wait_until(self.is_settled, 60)

    @contextlib.contextmanager
    def moving(self, slot: int) -> Iterator[None]:
        """A slot begins to move during the block, and stays where it was after it."""
        source, target = self._begin_to_move(slot)
        try:
            yield
        finally:
            for node in (source, target):
                node.execute_command("CLUSTER SETSLOT", slot, "STABLE")

    def migrate(self, slot: int) -> None:
        """Move a slot to another master, key by key; or back."""
        with self.half_moved(slot):
            pass

    @contextlib.contextmanager
    def half_moved(self, slot: int, *names: str) -> Iterator[None]:
        """During the block, only these names have moved to another master. Then all move."""
        source, target = self._begin_to_move(slot)
        if names:
            _move(names, source, target)
        try:
            yield
        finally:
            while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 2):
                _move(keys, source, target)
            self._give(slot, target)

    def _begin_to_move(self, slot: int) -> tuple[redis.Redis, redis.Redis]:
        main, other = self._nodes[1 - self._replica()], self._nodes[-1]
        source, target = (main, other) if _owns(main, slot) else (other, main)
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", _id(source))
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", _id(target))
        return source, target

    @contextlib.contextmanager
    def without_voter(self) -> Iterator[redis.Redis]:
        """During the block, a voter has no slot, and so is in no map of slots. It still answers."""
        voter, main = self._nodes[2], self._nodes[1 - self._replica()]
        with contextlib.suppress(redis.ResponseError):  # Redis 6.2: a master stays one anyway
            voter.config_set("cluster-allow-replica-migration", "no")
        self._hand_over(VOTERS_SLOT, voter, main)
        try:
            yield voter
        finally:
            self._hand_over(VOTERS_SLOT, main, voter)

    def _hand_over(self, slot: int, source: redis.Redis, target: redis.Redis) -> None:
        """Move a slot that has no keys. A target that imports a slot gets the newest epoch: else it
        would believe an older message of the source, and each would name the other as the owner."""
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", _id(source))
        source.execute_command("CLUSTER SETSLOT", slot, "NODE", _id(target))
        self._give(slot, target)

    def _give(self, slot: int, owner: redis.Redis) -> None:
        owner_id = _id(owner)
        for node in (owner, *self._nodes):
            with contextlib.suppress(redis.ResponseError):  # replicas refuse
                node.execute_command("CLUSTER SETSLOT", slot, "NODE", owner_id)

    def replica_has(self, name: str) -> bool:
        """Whether the replica stores this name. Asked on the replica itself."""
        found: list[object] = self._nodes[self._replica()].keys(name.replace("[", "\\["))
        return bool(found)

    @contextlib.contextmanager
    def replica_paused(self) -> Iterator[None]:
        with self._servers[self._replica()].paused():
            yield

    def forget_scripts(self) -> None:
        for node in self._nodes:
            node.script_flush()

    def _give_slots(self) -> None:
        if not self._has_replica:
            count = len(self._nodes)
            for number, node in enumerate(self._nodes):
                own = range(number * SLOTS // count, (number + 1) * SLOTS // count)
                node.execute_command("CLUSTER ADDSLOTS", *own)
            return
        voters = self._nodes[2:]
        last = SLOTS - len(voters) - 1
        # ADDSLOTSRANGE is newer than Redis 6.2.
        self._nodes[0].execute_command("CLUSTER ADDSLOTS", *range(last + 1))
        for number, voter in enumerate(voters, last + 1):
            voter.execute_command("CLUSTER ADDSLOTS", number)

    def _join(self) -> None:
        for number, node in enumerate(self._nodes, 1):
            node.execute_command("CLUSTER SET-CONFIG-EPOCH", number)
        for server in self._servers[1:]:
            self._nodes[0].execute_command("CLUSTER MEET", server.host, server.port)
        for node in self._nodes:
            wait_until(lambda node=node: _knows(node, len(self._nodes)), 60)
        if not self._has_replica:
            return
        self._nodes[1].execute_command("CLUSTER REPLICATE", _id(self._nodes[0]))
        wait_until(lambda: _is_in_sync(self._nodes[1]), 60)
        wait_until(self.is_settled, 60)

    def _replica(self) -> int:
        """0 or 1: these two change their roles."""
        wait_until(self.is_settled, 60)
        return 0 if _role(self._nodes[0]) == "slave" else 1

    def is_settled(self) -> bool:
        """Whether there is one master and one replica, and no node misses another."""
        with contextlib.suppress(redis.RedisError):
            roles = sorted(_role(node) for node in self._nodes[:2])
            return roles == ["master", "slave"] and all(
                _info(node)["cluster_state"] == "ok" for node in self._nodes
            )
        return False


def _move(names: Sequence[str | bytes], source: redis.Redis, target: redis.Redis) -> None:
    where = target.connection_pool.connection_kwargs
    arguments = (where["host"], where["port"], "", 0, 5_000, "REPLACE", "KEYS", *names)
    source.execute_command("MIGRATE", *arguments)


def _info(node: redis.Redis) -> dict[str, str]:
    return node.execute_command("CLUSTER INFO")


def _id(node: redis.Redis) -> str:
    found = node.execute_command("CLUSTER MYID")
    return found.decode() if isinstance(found, bytes) else found


def _role(node: redis.Redis) -> str:
    role: str = node.info("replication")["role"]
    return role


def _knows(node: redis.Redis, count: int) -> bool:
    return int(_info(node)["cluster_known_nodes"]) == count


def _is_in_sync(node: redis.Redis) -> bool:
    return node.info("replication").get("master_link_status") == "up"


def _owns(node: redis.Redis, slot: int) -> bool:
    """Whether the node is the owner by its own word."""
    own = _id(node)
    for first, last, master, *_ in node.execute_command("CLUSTER SLOTS"):
        if int(first) <= slot <= int(last):
            found = master[2]
            return (found.decode() if isinstance(found, bytes) else found) == own
    return False
