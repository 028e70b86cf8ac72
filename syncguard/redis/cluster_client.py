"""Clients of a Redis Cluster that connect on first use, and can name their nodes before that."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import redis
import redis.asyncio
from redis import cluster as _blocking
from redis.asyncio.cluster import ClusterNode as _AsyncClusterNode

from syncguard.redis.server_group import host_names

_ClusterNode: Any = _blocking.ClusterNode  # redis-py has no types for it


class ClusterOnFirstUse(redis.RedisCluster):
    """A blocking client that makes its first connection when it is first used.

    redis-py's own client asks a node for all others when it is made: Django could then not start,
    nor check its settings, without the cluster.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> None:
        # Not super().__init__(), which connects. Its attributes come from __getattr__.
        self._syncguard_hosts = tuple(hosts)
        self._syncguard_options = dict(options)

    @property
    def syncguard_nodes(self) -> str:
        """The nodes that the user named, for error texts."""
        return host_names(self._syncguard_hosts)

    @property
    def syncguard_options(self) -> Mapping[str, Any]:
        """The options of its connections that the user chose."""
        return self._syncguard_options

    @property
    def is_discovered(self) -> bool:
        return "_syncguard_made" in self.__dict__

    def discover(self) -> redis.RedisCluster:
        """Ask a node for all others, unless that has been done. Raises errors of redis-py."""
        made = self.__dict__.get("_syncguard_made")
        if made is None:
            nodes = [_ClusterNode(host, port) for host, port in self._syncguard_hosts]
            fresh = redis.RedisCluster(startup_nodes=nodes, **self._syncguard_options)
            # Without a lock, which a fork could copy while it is held. Of two threads one wins.
            made = self.__dict__.setdefault("_syncguard_made", fresh)
            if made is not fresh:
                fresh.close()
        return made

    def __getattr__(self, name: str) -> Any:
        """An attribute that ``RedisCluster.__init__`` sets: so somebody uses the client."""
        if name.startswith("__") or name == "connection_pool":  # a cluster has none
            raise AttributeError(name)
        return getattr(self.discover(), name)

    def close(self) -> None:
        made = self.__dict__.get("_syncguard_made")
        if made is not None:
            made.close()

    def __del__(self) -> None:
        """Nothing: the inherited method would connect. The client that was made has its own."""


class AsyncNamedCluster(redis.asyncio.RedisCluster):
    """An asyncio client. redis-py's own connects on first use too."""

    def __init__(self, hosts: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> None:
        nodes = [_AsyncClusterNode(host, port) for host, port in hosts]
        super().__init__(startup_nodes=nodes, **options)
        self.syncguard_nodes = host_names(hosts)


@cache
def cluster_only() -> frozenset[str]:
    """The options that a client of a cluster has, and a client of one server has not."""
    blocking, asynchronous, single = (
        inspect.signature(kind.__init__).parameters.keys()
        for kind in (redis.RedisCluster, redis.asyncio.RedisCluster, redis.Redis)
    )
    return frozenset((blocking | asynchronous) - single)
