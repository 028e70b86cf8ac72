"""The table of many runs: fault, runs, grants, violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from history.fault import Fault
from history.faults import FAULTS
from history.runner import Verdict

HEADER = ("fault", "runs", "grants", "violations")


def table(verdicts: Iterable[Verdict]) -> str:
    """In Markdown, with one line for each fault, and one for all of them."""
    by_fault: dict[type[Fault], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_fault[verdict.plan.fault].append(verdict)
    rows = [_row(fault.name, by_fault[fault], fault) for fault in FAULTS if by_fault[fault]]
    every = [verdict for each in by_fault.values() for verdict in each]
    return "\n".join(_lines([HEADER, ("---",) * len(HEADER), *rows, _row("all", every)]))


def is_documented(verdict: Verdict) -> bool:
    """Whether violations of this run are limits that the documentation states."""
    return not verdict.plan.fault.keeps_data


def _row(name: str, verdicts: list[Verdict], fault: type[Fault] | None = None) -> tuple[str, ...]:
    grants = sum(verdict.grants for verdict in verdicts)
    if fault is not None and not fault.keeps_data:
        limits = sum(len(verdict.violations) for verdict in verdicts)
        violations = f"0 ({limits:,} by loss of data)"
    else:
        judged = [verdict for verdict in verdicts if not is_documented(verdict)]
        violations = str(sum(len(verdict.violations) for verdict in judged))
    return (name, str(len(verdicts)), f"{grants:,}", violations)


def _lines(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in rows:
        yield f"| {' | '.join(row)} |"
