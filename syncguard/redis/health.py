"""Reports for an operator whether the Redis of a backend is reachable and configured for locks.

``read_report`` and ``read_health`` do no I/O: they convert Redis's replies to a ``ServerReport``,
and that to the displayed ``Health``. ``inspect_server``, ``health_of_server`` and
``server_time_ms`` send requests. No text here contains a key, a lock id or a password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from syncguard._backend.listing_and_health import Health
from syncguard.clock import redis_server_time_ms
from syncguard.constants import TIME_TOLERANCE_MS
from syncguard.errors import invalid_argument
from syncguard.redis._transport.connections import describe_server
from syncguard.redis._transport.error_codes import lock_error
from syncguard.redis.backend_config import Configured
from syncguard.redis.script_calls import Call

T = TypeVar("T")
Role = Literal["primary", "replica", "unknown"]

OLDEST_SUPPORTED: Final = (6, 2)
_ROLES: Final[dict[str, Role]] = {"master": "primary", "slave": "replica"}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of one Redis server. ``None`` means that the server did not report the value."""

    server: str
    version: str
    round_trip_ms: float
    clock_offset_ms: float
    """The server's clock minus ours, with an error of up to half a round trip."""
    aof: bool | None
    rdb: bool | None
    maxmemory_policy: str | None
    role: Role
    fence_floor: bool
    """Whether a lost fence counter restarts at the server's time instead of at 1."""

    @property
    def findings(self) -> tuple[str, ...]:
        """What an operator should change, one text each; empty if nothing."""
        return tuple(self._findings())

    def _findings(self) -> list[str]:
        found: list[str] = []
        if _version_of(self.version) < OLDEST_SUPPORTED:
            found.append(f"version {self.version} is older than 6.2, the oldest supported")
        if self.maxmemory_policy is None:
            found.append("maxmemory-policy is unknown: make sure that it is noeviction")
        elif self.maxmemory_policy != "noeviction":
            found.append(
                f"maxmemory-policy is {self.maxmemory_policy}, not noeviction:"
                " locks and fence counters can be evicted"
            )
        if self.role == "replica":
            found.append("this server is a replica: it cannot store locks")
        if self.aof is False and not self.rdb and not self.fence_floor:
            found.append(
                "nothing is written to disk: after a restart fences start at 1 again;"
                " enable AOF, or set the fence floor to 'clock'"
            )
        if abs(self.clock_offset_ms) - self.round_trip_ms / 2 > TIME_TOLERANCE_MS:
            found.append(
                f"the server's clock and ours differ by {abs(self.clock_offset_ms) / 1000:.1f} s"
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
    """Make the report from the replies to INFO, CONFIG GET save and TIME."""
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


def inspect_server(backend: Configured) -> ServerReport:
    """Request the state of a blocking backend's server. Raises LockError.

    On a cluster: the state of the client's default node.
    """
    return _inspect(backend, ())[0]


def server_time_ms(backend: Configured) -> int:
    """The server's time. A lock's ``expires_at_ms`` and ``acquired_at_ms`` use the same clock."""
    client = _client_of(backend)
    return _with_lock_errors(client, lambda: redis_server_time_ms(client.time()))


def read_health(report: ServerReport, live_locks: int, fence_counters: int) -> Health:
    """Convert the report to what ``syncguard_status --check`` shows, as text and as JSON."""
    return Health(
        facts=(
            ("server", f"{report.server.capitalize()} {report.version}, {report.role}"),
            ("round trip", f"{report.round_trip_ms:.1f} ms"),
            ("clock offset", f"{report.clock_offset_ms:+.1f} ms"),
            ("persistence", f"AOF {_switch(report.aof)}, RDB {_switch(report.rdb)}"),
            ("maxmemory-policy", report.maxmemory_policy or "unknown"),
            ("live locks", f"{live_locks:,}"),
            ("fence counters", f"{fence_counters:,}"),
        ),
        fields={
            "server": report.server,
            "version": report.version,
            "role": report.role,
            "roundTripMs": round(report.round_trip_ms, 3),
            "clockOffsetMs": round(report.clock_offset_ms, 3),
            "aof": report.aof,
            "rdb": report.rdb,
            "maxmemoryPolicy": report.maxmemory_policy,
            "liveLocks": live_locks,
            "fenceCounters": fence_counters,
        },
        findings=report.findings,
    )


def health_of_server(backend: Configured) -> Health:
    """The state of the server and the backend's counts, in two round trips.

    Not for a cluster, where the counts are on several nodes.
    """
    counts = [backend._calls.counts(space) for space in backend._calls.names.spaces()]
    report, numbers = _inspect(backend, counts)
    return read_health(report, sum(live for live, _ in numbers), sum(n for _, n in numbers))


def _inspect(backend: Configured, calls: Sequence[Call[T]]) -> tuple[ServerReport, list[T]]:
    client = _client_of(backend)

    def ask() -> tuple[ServerReport, list[T]]:
        with client.pipeline(transaction=False) as pipe:
            pipe.info()
            pipe.config_get("save")
            for call in calls:
                pipe.eval(call.script.text, len(call.keys), *call.keys, *call.args)
            info, saved, *replies = pipe.execute(raise_on_error=False)
        for reply in (info, *replies):
            if isinstance(reply, Exception):
                raise reply
        # A separate request: INFO in the same round trip would make both measurements less exact.
        sent_at_ms = time.time() * 1000
        answer = client.time()
        report = read_report(
            info,
            save=_save_points(saved),
            sent_at_ms=sent_at_ms,
            received_at_ms=time.time() * 1000,
            server_ms=answer[0] * 1000 + answer[1] / 1000,
            fence_floor=bool(backend._calls._floor),
        )
        return report, [call.read(reply) for call, reply in zip(calls, replies, strict=True)]

    return _with_lock_errors(client, ask)


def _client_of(backend: Configured) -> Any:
    if backend.is_async:
        raise invalid_argument("the state of a server can only be read with a blocking backend")
    client = backend._client
    return client.get_default_node().redis_connection if backend._clustered else client


def _save_points(reply: object) -> str | None:
    if not isinstance(reply, dict):  # an error: hosted Redis often disables CONFIG
        return None
    value = reply.get("save", reply.get(b"save"))
    return value.decode() if isinstance(value, bytes) else value


def _switch(value: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[value]


def _with_lock_errors(client: object, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:
        raise lock_error(error, server=describe_server(client)) from error


def _version_of(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else OLDEST_SUPPORTED
