"""The history of a run: events, one line of JSON each, in one file for each process.

All times are milliseconds of ``holder_clock_ms``, the one clock that all processes of a machine
share. An event is written with one call of ``write``, so that a process that is killed leaves whole
lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from syncguard.clock import holder_clock_ms

Kind = Literal[
    "begin",  # a call begins: text says which
    "end",  # the call with this number ended
    "granted",  # the caller got the lock; at: when it knew, sent_at: when it asked
    "believed",  # the lock was not lost; at: before it asked the lock
    "told",  # the holder heard that the lock is lost; text says how
    "leaving",  # the block ends
    "left",  # the block has ended, and its caller knows whether the lock was lost
    "released",  # the store answered a release, or the release failed: then ok is None
    "extended",  # the same for an extension
    "foreign",  # an exception that is not a LockError
    "killed",  # a fault killed this process
    "unlimited",  # a name in the store that never expires, and should
]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the history. Each kind uses some of the fields."""

    kind: Kind
    at: float
    pid: int = 0
    worker: str = ""
    lock: str = ""
    """A short hash of the lock id."""
    key: str = ""
    fence: str = ""
    sent_at: float = 0.0
    deadline: float = 0.0
    """Until when the holder may believe in the lock, as the library told it."""
    ttl_ms: int = 0
    ok: bool | None = None
    assumed: bool = False
    adopted: bool = False
    """The lock was taken over from an earlier lock id; the fence is the same."""
    call: int = 0
    text: str = ""

    def __str__(self) -> str:
        shown = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())


class Log:
    """Appends to a file. Any thread may write; a forked child writes to the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: Kind, at: float | None = None, **fields: object) -> None:
        line = {"kind": kind, "at": now() if at is None else at, "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> list[Event]:
    """All events of a run, in the order of their times."""
    found = [event for path in sorted(folder.glob("*.jsonl")) for event in read_file(path)]
    return sorted(found, key=lambda event: event.at)


def now() -> float:
    return holder_clock_ms()


def short_id(lock_id: str) -> str:
    """What the log contains instead of a lock id."""
    return hashlib.sha256(lock_id.encode()).hexdigest()[:12]


def read_file(path: Path) -> list[Event]:
    """The events of one process, in the order in which it wrote them."""
    whole, _, _cut_off_by_a_kill = path.read_bytes().rpartition(b"\n")
    return [Event(**json.loads(line)) for line in whole.splitlines()]


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
