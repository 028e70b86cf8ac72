"""Reports for an operator whether the database of a backend is reachable and fit for locks. No I/O.

No text here contains a key, a lock id or a password.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

from syncguard._backend.listing_and_health import Health
from syncguard.constants import TIME_TOLERANCE_MS
from syncguard.errors import LockError

OLDEST_SUPPORTED: Final = 12


class ServerFacts(NamedTuple):
    """What the server says about itself."""

    version: str
    is_standby: bool
    fsync: str
    synchronous_commit: str
    max_connections: int
    fence_counters: int
    """An estimate; -1 if the table was never analysed."""
    time_ms: float


def read_facts(rows: list[list[str | None]]) -> ServerFacts:
    match rows:
        case [
            [
                str(version),
                str(standby),
                str(fsync),
                str(commit),
                str(connections),
                _,
                str(counters),
                str(time_ms),
            ]
        ]:
            return ServerFacts(
                version.split()[0],
                standby == "t",
                fsync,
                commit,
                int(connections),
                int(counters),
                float(time_ms),
            )
    raise LockError("Internal", "the answer to health is not in SyncGuard's format")


def make_health(
    facts: ServerFacts,
    *,
    live_locks: int,
    sent_at_ms: float,
    received_at_ms: float,
    is_direct: bool,
    can_listen: bool,
    fence_floor: bool,
) -> Health:
    """Convert the facts to what ``syncguard_status --check`` shows, as text and as JSON."""
    round_trip_ms = received_at_ms - sent_at_ms
    offset_ms = facts.time_ms - (sent_at_ms + received_at_ms) / 2
    role = "standby" if facts.is_standby else "primary"
    counters = "unknown" if facts.fence_counters < 0 else f"about {facts.fence_counters:,}"
    findings: list[str] = []
    if _major(facts.version) < OLDEST_SUPPORTED:
        findings.append(f"version {facts.version} is older than {OLDEST_SUPPORTED}")
    if facts.is_standby:
        findings.append("this server is a standby: it cannot store locks")
    risks: list[str] = []
    if facts.fsync != "on" and not fence_floor:
        risks.append("fsync is off: after a crash fences can be repeated")
        findings.append(f"{risks[-1]}; turn it on, or set the fence floor to 'clock'")
    if facts.synchronous_commit == "off" and not fence_floor:
        risks.append("synchronous_commit is off: after a crash fences can be repeated")
        findings.append(f"{risks[-1]}; turn it on for this role, or set the fence floor to 'clock'")
    if abs(offset_ms) - round_trip_ms / 2 > TIME_TOLERANCE_MS:
        findings.append(f"the server's clock and ours differ by {abs(offset_ms) / 1000:.1f} s")
    return Health(
        facts=(
            ("server", f"PostgreSQL {facts.version}, {role}"),
            ("round trip", f"{round_trip_ms:.1f} ms"),
            ("clock offset", f"{offset_ms:+.1f} ms"),
            ("durability", f"fsync {facts.fsync}, synchronous_commit {facts.synchronous_commit}"),
            ("connection", "direct" if is_direct else "through a pooler"),
            ("waiting", "woken by NOTIFY" if can_listen else "by backoff"),
            ("max_connections", str(facts.max_connections)),
            ("live locks", f"{live_locks:,}"),
            ("fence counters", counters),
        ),
        fields={
            "server": "postgresql",
            "version": facts.version,
            "role": role,
            "roundTripMs": round(round_trip_ms, 3),
            "clockOffsetMs": round(offset_ms, 3),
            "fsync": facts.fsync,
            "synchronousCommit": facts.synchronous_commit,
            "isDirect": is_direct,
            "canListen": can_listen,
            "maxConnections": facts.max_connections,
            "liveLocks": live_locks,
            "fenceCountersEstimate": facts.fence_counters,
        },
        findings=tuple(findings),
        fences_can_go_back=risks[0] if risks else None,
    )


def _major(version: str) -> int:
    digits = "".join(takewhile(str.isdigit, version))
    return int(digits) if digits else OLDEST_SUPPORTED
