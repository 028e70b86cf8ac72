"""Writes the table into the page Speed, between two comments, with machine, versions and date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

from speed_rows import ROWS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "speed.md"
BEGIN: Final = "<!-- benchmarks: begin; written by tox run -e benchmarks -->"
END: Final = "<!-- benchmarks: end -->"


def table(values: dict[str, float]) -> str:
    lines = ["| what | measured | goal | met |", "|---|---:|---|---|"]
    for row in ROWS:
        value = values.get(row.name)
        measured = "not measured" if value is None else row.text(value)
        met = "" if value is None or not row.goal else "yes" if row.is_met(value) else "no"
        lines.append(f"| {row.title} | {measured} | {row.goal} | {met} |")
    return "\n".join(lines)


def conditions(redis_version: str) -> str:
    """Where and when: without this the figures say nothing."""
    versions = [f"{name} {version(name)}" for name in ("redis", "hiredis", "celery", "Django")]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return (
        f"{today}; {machine}, load {os.getloadavg()[1]:.1f};"
        f" Python {platform.python_version()}, Redis {redis_version}, {', '.join(versions)}"
    )


def write(text: str) -> None:
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{PAGE} has no block for the table"
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")
