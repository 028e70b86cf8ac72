"""The state of a lock file for an operator, and what to change. No I/O on the file itself."""

from __future__ import annotations

import os
import sqlite3

from syncguard._backend.listing_and_health import Health
from syncguard._sql.backend_options import FenceFloor
from syncguard.sqlite.file_system import file_system_of, is_network
from syncguard.sqlite.lock_file import LockFile


def read_health(
    file: LockFile,
    *,
    live_locks: int,
    fence_counters: int,
    write_ms: float,
    fence_floor: FenceFloor | None,
) -> Health:
    """What ``syncguard_status --check`` shows, as text and as JSON."""
    file_system = file_system_of(os.path.dirname(file.path))
    size = os.path.getsize(file.path) if os.path.exists(file.path) else 0
    findings = []
    if is_network(file_system):
        findings.append(
            f"the file is on a network file system ({file_system}): locks do not exclude the"
            " processes of other machines, and the file can be damaged"
        )
    if file.synchronous == "normal" and fence_floor is None:
        findings.append(
            "a power cut can lose fences, and the next ones repeat them: set the fence floor to"
            " 'clock', or synchronous to 'full'"
        )
    return Health(
        facts=(
            ("server", f"SQLite {sqlite3.sqlite_version}, a file of this machine"),
            ("file", file.path),
            ("file system", file_system or "unknown"),
            ("file size", f"{size:,} bytes"),
            ("synchronous", file.synchronous),
            ("one transaction", f"{write_ms:.1f} ms"),
            ("live locks", f"{live_locks:,}"),
            ("fence counters", f"{fence_counters:,}"),
        ),
        fields={
            "server": "sqlite",
            "version": sqlite3.sqlite_version,
            "fileSystem": file_system or None,
            "fileBytes": size,
            "synchronous": file.synchronous,
            "roundTripMs": round(write_ms, 3),
            "liveLocks": live_locks,
            "fenceCounters": fence_counters,
        },
        findings=tuple(findings),
    )
