"""What ``syncguard_status`` prints: aligned text for people, JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from syncguard_django.durations import for_people
from syncguard_django.live_locks import AliasHealth, Failure, LiveLock

HEADINGS: Final = ("KEY HASH", "HOLDER", "FENCE", "ACQUIRED", "EXPIRES IN", "LOCK-ID HASH")


def table(locks: Sequence[LiveLock], *, with_alias: bool) -> list[str]:
    """Aligned lines: the headings, then a line for each lock."""
    rows = [
        (
            lock.info.key_hash,
            printable(lock.info.holder or "-"),
            lock.info.fence,
            f"{for_people(lock.held_ms)} ago",
            for_people(lock.remaining_ms),
            lock.info.lock_id_hash,
        )
        for lock in locks
    ]
    lines: list[tuple[str, ...]] = [HEADINGS, *rows]
    if with_alias:
        names = ["ALIAS", *(printable(lock.using) for lock in locks)]
        lines = [(name, *line) for name, line in zip(names, lines, strict=True)]
    return _aligned(lines)


def both_hashes(hashes: Sequence[tuple[str, str]], specified: str) -> list[str]:
    """The hash of a key as each alias shows it, and the hash of the specification."""
    if len({shown for _, shown in hashes}) == 1:
        facts = [("key hash", hashes[0][1])]
    else:
        facts = [(f"key hash, {printable(using)}", shown) for using, shown in hashes]
    return _aligned([*facts, ("specification's hash", specified)])


def facts(lock: LiveLock) -> list[str]:
    """One lock, a line for each fact."""
    return _aligned(
        [
            ("key hash", lock.info.key_hash),
            ("alias", printable(lock.using)),
            ("holder", printable(lock.info.holder or "-")),
            ("fence", lock.short_fence),
            ("held for", for_people(lock.held_ms)),
            ("expires in", for_people(lock.remaining_ms)),
            ("lock-id hash", lock.info.lock_id_hash),
        ]
    )


def lock_as_json(lock: LiveLock) -> dict[str, object]:
    """A lock with the specification's names; all times in milliseconds."""
    info = lock.info
    return {
        "alias": lock.using,
        "keyHash": info.key_hash,
        "lockIdHash": info.lock_id_hash,
        "holder": info.holder,
        "fence": info.fence,
        "acquiredAtMs": info.acquired_at_ms,
        "expiresAtMs": info.expires_at_ms,
        "heldMs": lock.held_ms,
        "expiresInMs": lock.remaining_ms,
    }


def failure_as_json(failure: Failure) -> dict[str, object]:
    return {
        "alias": failure.using,
        "error": {"code": failure.code, "message": failure.message},
    }


def health_as_json(health: AliasHealth) -> dict[str, object]:
    report = health.report
    return {
        "alias": health.using,
        "healthy": not report.findings,
        **report.fields,
        "findings": list(report.findings),
    }


def health_lines(health: AliasHealth) -> list[str]:
    """The state of a server for people, without its findings."""
    facts = [(what, printable(text)) for what, text in health.report.facts]
    return [f"  {line}" for line in _aligned(facts)]


def as_json(items: Iterable[dict[str, Any]], *, lines: bool) -> str:
    """One JSON array, or one object per line."""
    if lines:
        return "\n".join(json.dumps(item) for item in items)
    return json.dumps(list(items), indent=2)


def printable(text: str) -> str:
    """Text without control characters: any client can write a holder label, and a terminal
    executes them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
