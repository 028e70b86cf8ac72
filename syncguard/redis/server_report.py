"""The state of a Redis server for an operator: what it reports, and what should be changed.

No I/O: converts Redis's replies to a ``ServerReport``, and that to the displayed ``Health``. No
text here contains a key, a lock id or a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from syncguard._backend.listing_and_health import Health
from syncguard.constants import TIME_TOLERANCE_MS

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
    replicas: int | None = 0
    """How many replicas are connected."""

    @property
    def findings(self) -> tuple[str, ...]:
        """What an operator should change, one text each; empty if nothing."""
        return tuple(self._findings())

    @property
    def fences_can_go_back(self) -> str | None:
        """Why a fence can be given out twice, or why that is unknown. None: it cannot."""
        if self.fence_floor:
            return None
        if self.replicas is None:
            return (
                "this user may not run INFO: unknown whether data is written to disk, and whether"
                " there are replicas"
            )
        if self.aof is False and self.rdb is None:
            return "AOF is off, and CONFIG GET is refused: unknown whether snapshots are written"
        if self.aof is False and not self.rdb:
            return "nothing is written to disk: after a restart fences start at 1 again"
        if self.replicas:
            return (
                f"{self.replicas} replica{'s are' if self.replicas > 1 else ' is'} connected, and"
                " replication is asynchronous: after a fail-over fences can be given out twice"
            )
        return None

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
        risk = self.fences_can_go_back
        if risk is not None:
            found.append(f"{risk}; set the fence floor to 'clock'")
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
        replicas=_replicas(info),
    )


def _replicas(info: Mapping[str, object]) -> int | None:
    connected = info.get("connected_slaves")
    if isinstance(connected, int):
        return connected
    return 0 if info else None  # some hosts do not report it


def read_health(report: ServerReport, live_locks: int, fence_counters: int) -> Health:
    """Convert the report to what ``syncguard_status --check`` shows, as text and as JSON."""
    return Health(
        facts=(
            ("server", f"{report.server.capitalize()} {report.version}, {report.role}"),
            ("round trip", f"{report.round_trip_ms:.1f} ms"),
            ("clock offset", f"{report.clock_offset_ms:+.1f} ms"),
            ("persistence", f"AOF {_switch(report.aof)}, RDB {_switch(report.rdb)}"),
            ("replicas", "unknown" if report.replicas is None else f"{report.replicas:,}"),
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
            "replicas": report.replicas,
            "maxmemoryPolicy": report.maxmemory_policy,
            "liveLocks": live_locks,
            "fenceCounters": fence_counters,
        },
        findings=report.findings,
        fences_can_go_back=report.fences_can_go_back,
    )


def _switch(value: bool | None) -> str:
    return {True: "on", False: "off", None: "unknown"}[value]


def _version_of(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else OLDEST_SUPPORTED
