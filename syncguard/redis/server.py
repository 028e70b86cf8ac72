"""What an operator asks of the Redis behind a backend: is it there, and is it fit for locks?

``read_report`` is pure: from what Redis said to a ``ServerReport``. ``inspect_server`` and
``server_time_ms`` ask. Nothing here names a key, a lock id or a password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from syncguard.clock import redis_server_time_ms
from syncguard.constants import TIME_TOLERANCE_MS
from syncguard.redis.client import RedisBackend
from syncguard.redis.connections import place_of
from syncguard.redis.errors import lock_error

T = TypeVar("T")
Role = Literal["primary", "replica", "unknown"]

OLDEST_SUPPORTED: Final = (6, 2)
_ROLES: Final[dict[str, Role]] = {"master": "primary", "slave": "replica"}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of one Redis server. ``None`` means that it would not say."""

    server: str
    version: str
    round_trip_ms: float
    clock_offset_ms: float
    """The server's clock minus ours, give or take half a round trip."""
    aof: bool | None
    rdb: bool | None
    maxmemory_policy: str | None
    role: Role
    fence_floor: bool
    """Whether a counter that was lost starts at the clock instead of at 1."""

    @property
    def findings(self) -> tuple[str, ...]:
        """What an operator should change, in sentences; empty when all is well."""
        return tuple(self._findings())

    def _findings(self) -> list[str]:
        found: list[str] = []
        if _version_of(self.version) < OLDEST_SUPPORTED:
            found.append(f"version {self.version} is older than 6.2, the oldest supported")
        if self.maxmemory_policy is None:
            found.append("maxmemory-policy is not known: make sure that it is noeviction")
        elif self.maxmemory_policy != "noeviction":
            found.append(
                f"maxmemory-policy is {self.maxmemory_policy}, not noeviction:"
                " locks and fence counters can be evicted"
            )
        if self.role == "replica":
            found.append("this server is a replica: it refuses to take locks")
        if self.aof is False and not self.rdb and not self.fence_floor:
            found.append(
                "nothing is written to disk: after a restart fences begin at 1 again;"
                " switch AOF on, or set the fence floor to 'clock'"
            )
        if abs(self.clock_offset_ms) - self.round_trip_ms / 2 > TIME_TOLERANCE_MS:
            found.append(
                f"the server's clock and ours are {abs(self.clock_offset_ms) / 1000:.1f} s apart"
            )
        return found


def read_report(
    info: Mapping[str, object],
    *,
    save: str | None,
    sent_at_ms: float,
    received_at_ms: float,
    server_ms: float,
    fence_floor: bool,
) -> ServerReport:
    """The report that follows from INFO, from CONFIG GET save and from TIME."""
    aof = info.get("aof_enabled")
    policy = info.get("maxmemory_policy")
    valkey = info.get("valkey_version")
    return ServerReport(
        server="redis" if valkey is None else "valkey",
        version=str(valkey or info.get("redis_version") or "unknown"),
        round_trip_ms=received_at_ms - sent_at_ms,
        clock_offset_ms=server_ms - (sent_at_ms + received_at_ms) / 2,
        aof=None if aof is None else bool(aof),
        rdb=None if save is None else bool(save.strip()),
        maxmemory_policy=None if policy is None else str(policy),
        role=_ROLES.get(str(info.get("role")), "unknown"),
        fence_floor=fence_floor,
    )


def inspect_server(backend: RedisBackend) -> ServerReport:
    """Ask the server behind a backend for its state: four commands. Raises LockError.

    On a cluster, the state of the node that the client calls its default one.
    """
    client = _client_of(backend)

    def ask() -> ServerReport:
        info = client.info()
        save = _save_points(client)
        sent_at_ms = time.time() * 1000
        answer = client.time()
        return read_report(
            info,
            save=save,
            sent_at_ms=sent_at_ms,
            received_at_ms=time.time() * 1000,
            server_ms=answer[0] * 1000 + answer[1] / 1000,
            fence_floor=bool(backend._calls._floor),
        )

    return _asked(client, ask)


def server_time_ms(backend: RedisBackend) -> int:
    """The server's clock: what a lock's ``expires_at_ms`` and ``acquired_at_ms`` count by."""
    client = _client_of(backend)
    return _asked(client, lambda: redis_server_time_ms(client.time()))


def impatient_options(timeout_s: float = 2.0) -> dict[str, object]:
    """Options for a client that somebody waits for in front of a page: one try, and short."""
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }


def _client_of(backend: RedisBackend) -> Any:
    client = backend._client
    return client.get_default_node().redis_connection if backend._clustered else client


def _save_points(client: Any) -> str | None:
    try:
        saved: dict[Any, Any] = client.config_get("save")
    except RedisError:  # hosted Redis forbids CONFIG
        return None
    value = saved.get("save", saved.get(b"save"))
    return value.decode() if isinstance(value, bytes) else value


def _asked(client: object, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:
        raise lock_error(error, place=place_of(client)) from error


def _version_of(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else OLDEST_SUPPORTED
