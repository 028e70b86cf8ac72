"""A master, its replica, and the sentinel that watches both: real servers for tests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import redis
from redis.sentinel import Sentinel
from wait_until import wait_until

from syncguard.testing import RedisServer
from syncguard.testing.free_port import free_port
from syncguard.testing.redis_server_path import find_redis_server

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "ours"
NEVER_DOWN = 600_000
SOON_DOWN = 500
SETTINGS = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {name} 127.0.0.1 {master} 1
sentinel down-after-milliseconds {name} {down_after_ms}
sentinel failover-timeout {name} 5000
"""


class SentinelServers:
    """Run during the ``with`` block. ``config`` has lines of redis.conf for both servers.

    A master is down for the sentinel if it was silent for ``down_after_ms``. Tests without a
    fail-over need NEVER_DOWN: on a busy machine a healthy master is silent for a while. A killed
    one is down soon in any case.
    """

    def __init__(self, config: Iterable[str] = (), *, down_after_ms: int = SOON_DOWN) -> None:
        self._down_after_ms = down_after_ms
        lines = ["repl-diskless-sync-delay 0", *config]
        self._servers = [RedisServer(config=lines), RedisServer(config=lines)]
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            for server in self._servers:
                opened.enter_context(server)
            master, replica = self._servers
            with replica.client() as client:
                client.replicaof(master.host, master.port)
                wait_until(lambda: client.info("replication")["master_link_status"] == "up")
            port = free_port()
            self._start_sentinel(opened, port, master.port)
            self.address = (master.host, port)
            self.sentinel = Sentinel([self.address], sentinel_kwargs={"socket_timeout": 5.0})
            for client in self.sentinel.sentinels:
                opened.callback(client.close)
            wait_until(self.knows_both)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._opened.close()

    @property
    def master(self) -> RedisServer:
        """The server that is the master by the word of the sentinel."""
        port = self.sentinel.discover_master(NAME)[1]
        return next(server for server in self._servers if server.port == port)

    @property
    def replica(self) -> RedisServer:
        master = self.master
        return next(server for server in self._servers if server is not master)

    def is_in_sync(self) -> bool:
        """Whether the replica has everything that the master has."""
        with contextlib.suppress(redis.RedisError), self.master.client() as client:
            info = client.info("replication")
            slave = info.get("slave0", {})
            return slave.get("state") == "online" and slave["offset"] == info["master_repl_offset"]
        return False

    def kill_master(self) -> RedisServer:
        """kill -9, and wait for the new master. Returns the old one, which does not run."""
        old, new = self.master, self.replica
        old.kill()
        self._set_down_after(SOON_DOWN)
        wait_until(lambda: self._is_master(new), 60)
        self._set_down_after(self._down_after_ms)
        return old

    def bring_back(self, old: RedisServer) -> None:
        """Start a killed server again, as a replica. The sentinel would do it after 10 s."""
        old.restart()
        with old.client() as client:
            client.replicaof(old.host, self.master.port)
        wait_until(self.is_in_sync, 60)

    def fail_over_by_command(self) -> None:
        """Ask the sentinel to change the roles. Both servers go on running."""
        new = self.replica
        wait_until(self._accepts_failover, 60)
        wait_until(lambda: self._is_master(new))

    def knows_both(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return len(self.sentinel.discover_slaves(NAME)) == 1
        return False

    def _accepts_failover(self) -> bool:
        """The sentinel refuses shortly after the last one, and while no replica is fit."""
        with contextlib.suppress(redis.RedisError):
            self.sentinel.sentinels[0].execute_command("SENTINEL FAILOVER", NAME)
            return True
        return False

    def _set_down_after(self, ms: int) -> None:
        setting = ("down-after-milliseconds", ms)
        self.sentinel.sentinels[0].execute_command("SENTINEL SET", NAME, *setting)

    def _is_master(self, server: RedisServer) -> bool:
        with contextlib.suppress(redis.RedisError):
            port: int = self.sentinel.discover_master(NAME)[1]
            return port == server.port
        return False

    def _start_sentinel(self, opened: contextlib.ExitStack, port: int, master: int) -> None:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="syncguard-sentinel-")))
        settings = folder / "sentinel.conf"
        text = SETTINGS.format(
            port=port, folder=folder, master=master, name=NAME, down_after_ms=self._down_after_ms
        )
        settings.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [find_redis_server(), settings, "--sentinel"], stdout=subprocess.DEVNULL
        )
        opened.callback(process.wait)
        opened.callback(process.kill)
