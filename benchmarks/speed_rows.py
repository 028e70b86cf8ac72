"""The rows of the table on the page Speed: what is measured, in which unit, and the goal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    def text(self, value: float) -> str:
        if self.unit in ("x", "ms"):
            return f"{value:.2f} {self.unit}"
        return f"{value:,.0f} {self.unit}".strip()

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"at most {self.text(self.at_most)}"
        return "" if self.at_least is None else f"at least {self.text(self.at_least)}"

    def is_met(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )


def _rows() -> tuple[Row, ...]:
    handovers = [
        Row(
            f"asyncio_handover_{count}",
            f"asyncio: hand-over among {count} tasks, of that among {count} threads",
            "x",
            at_most=1.0,
        )
        for count in (2, 32)
    ]
    contended = [
        Row(
            f"contended_{count}",
            f"blocking: {count} threads on one key, locks a second, of python-redis-lock",
            "x",
            at_least=1.3,
        )
        for count in (2, 8, 32)
    ]
    heartbeats = [
        Row(
            f"heartbeats_{kind}_{side}",
            f"10,000 heartbeats, TTL 3 s, {kind}: {side}, of one core",
            "%",
            at_most=goal,
        )
        for kind in ("blocking", "asyncio")
        for side, goal in (("client", 20), ("server", 18))
    ]
    memory = [
        Row(f"memory_{part}", f"memory in Redis for a live lock: {what}", "bytes")
        for part, what in (
            ("record", "its record"),
            ("index", "its index"),
            ("counter", "its fence counter"),
            ("live", "its entry in the list of live locks"),
        )
    ]
    listing = [
        Row(f"listing_{count}", f"listing 100 of 10,000 locks, {count:,} idle counters", "ms")
        for count in (0, 100_000, 1_000_000)
    ]
    imports = [
        Row(f"import_{package}", f"import `{package}`, beyond its dependencies", "ms", at_most=30)
        for package in ("syncguard", "syncguard.redis", "syncguard_django", "syncguard_celery")
    ]
    growth = [
        Row(f"growth_{kind}_{what}", f"100,000 pairs, {kind}: growth of {name}", unit, at_most=most)
        for kind in ("blocking", "asyncio")
        for what, name, unit, most in (
            ("memory", "memory", "KiB", 2048),
            ("sockets", "open files", "", 0),
            ("tasks", "threads" if kind == "blocking" else "tasks", "", 0),
        )
    ]
    beyond = "`lock()` beyond acquire and release"
    return (
        Row("asyncio_one", "asyncio `lock()`, one task: time, of redis-py's", "x", at_most=0.8),
        Row(
            "asyncio_one_processor",
            "asyncio `lock()`, one task: processor time, of redis-py's",
            "x",
            at_most=0.6,
        ),
        Row(
            "asyncio_fifty",
            "asyncio `lock()`, 50 tasks on 50 keys: pairs a second, of redis-py's",
            "x",
            at_least=2.5,
        ),
        *handovers,
        Row("beyond_blocking", f"blocking: {beyond}", "µs", at_most=40),
        Row("beyond_asyncio", f"asyncio: {beyond}", "µs", at_most=40),
        Row(
            "blocking_one",
            "blocking: acquire and release, one thread: time, of redis-py's Lock",
            "x",
            at_most=0.55,
        ),
        Row("blocking_lock", "blocking: `lock()`, one thread: time, of redis-py's Lock", "x"),
        Row(
            "blocking_pings",
            "blocking: acquire and release, one thread: time, of two PINGs",
            "x",
            at_most=1.25,
        ),
        Row(
            "blocking_eight",
            "blocking: 8 threads on 8 keys, pairs a second, of redis-py's Lock",
            "x",
            at_least=1.3,
        ),
        *contended,
        *memory,
        Row("memory_whole", "memory in Redis for a live lock: all of it", "bytes", at_most=723),
        *heartbeats,
        Row("server_acquire", "acquire: time in Redis (commandstats)", "µs"),
        Row("server_release", "release: time in Redis (commandstats)", "µs"),
        Row("celery_locked", "`@locked_task`: tasks a second, of plain", "x", at_least=0.93),
        Row(
            "celery_publish",
            '`@locked_task(at="publish")`: tasks a second, of plain',
            "x",
            at_least=0.88,
        ),
        Row("celery_singleton", "celery-singleton: tasks a second, of plain", "x"),
        *listing,
        Row("listing_requests", "listing 100 locks: requests", "", at_most=1),
        *imports,
        *growth,
    )


ROWS: Final = _rows()
