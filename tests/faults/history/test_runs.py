"""Short runs of the history checker: every kind of worker, and the quick faults.

``tox run -e faults`` runs all faults, for as long as it is told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from history import faults_of_redis as faults
from history import faults_of_sql
from history.checker import Violation
from history.fault import Fault
from history.faults import FAULTS
from history.plan import Plan
from history.runner import Verdict, run
from history.table import HEADER, table

SECONDS = (1.5, 6.0, 24.0)
"""How long a run takes. A longer one follows only if the machine was too busy for the first."""
ON_EVERY_PYTHON = [faults.NoFault, faults.WorkersStopped, faults.WorkersForked]
ON_ONE_PYTHON = [
    faults.RedisStopped,
    faults.RedisKilled,
    faults.ClientsKilled,
    faults.RepliesLost,
    faults.WorkersKilled,
    faults_of_sql.SQLiteFileLocked,
    faults_of_sql.Memory,
]
QUICK = [*ON_EVERY_PYTHON, *(pytest.param(it, marks=pytest.mark.slow) for it in ON_ONE_PYTHON)]


def short_plan(fault: type[Fault], seconds: float = SECONDS[0]) -> Plan:
    plan = Plan.of(fault, seed=1, seconds=seconds)
    return dataclasses.replace(plan, processes=2, celery=False)


def run_until_something_happened(
    fault: type[Fault], happened: Callable[[Verdict], object]
) -> Verdict:
    """Run once, or again for longer if nothing happened in time."""
    for seconds in SECONDS:
        verdict = run(short_plan(fault, seconds))
        if happened(verdict):
            break
    return verdict


def check_promises(fault: type[Fault]) -> None:
    verdict = run_until_something_happened(fault, lambda it: it.violations or it.grants)
    assert not verdict.violations, verdict
    assert verdict.grants > 0


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.__name__)
def test_locks_keep_their_promises_under_a_fault(fault: type[Fault]) -> None:
    check_promises(fault)


@pytest.mark.slow
@pytest.mark.usefixtures("syncguard_postgres_server")  # skipped where there is no PostgreSQL
def test_locks_keep_their_promises_while_transactions_of_postgresql_conflict() -> None:
    check_promises(faults_of_sql.PostgresConflicts)


@pytest.mark.slow
def test_locks_of_tasks_keep_their_promises_beside_other_workers() -> None:
    verdict = run(dataclasses.replace(short_plan(faults.ScriptsFlushed), celery=True))
    assert not verdict.violations, verdict


def test_a_store_that_loses_its_data_breaks_the_rules() -> None:
    """The checker sees what the workers of a real run do: here it must find something."""

    def broken_rules(verdict: Verdict) -> set[str]:
        return {violation.rule for violation in verdict.violations}

    verdict = run_until_something_happened(
        faults.EverythingFlushed, lambda it: "fences increase" in broken_rules(it)
    )
    assert "fences increase" in broken_rules(verdict)


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    for fault in FAULTS:
        plan = Plan.of(fault, seed=7, seconds=20)
        assert plan == Plan.of(fault, seed=7, seconds=20)
        assert plan.random().random() == plan.random().random()
    plans = {Plan.of(faults.RedisStopped, seed, 20).strikes_at for seed in range(20)}
    assert len(plans) == 20


def test_the_table_has_a_line_for_each_fault_and_counts_documented_limits_apart() -> None:
    broken = [Violation("fences increase", "a fence repeats")]
    verdicts = [
        Verdict(Plan.of(faults.RedisKilled, 1, 5), grants=1_000, seconds=5, violations=broken),
        Verdict(Plan.of(faults.RedisKilled, 2, 5), grants=500, seconds=5),
        Verdict(Plan.of(faults.EverythingFlushed, 1, 5), grants=10, seconds=5, violations=broken),
    ]
    assert table(verdicts).splitlines()[2:] == [
        "| Redis killed -9, appendfsync always | 2 | 1,500 | 1 |",
        "| FLUSHALL | 1 | 10 | 0 (1 by loss of data) |",
        "| all | 3 | 1,510 | 1 |",
    ]


def test_the_table_separates_the_thousands_of_documented_limits() -> None:
    broken = [Violation("fences increase", "a fence repeats")] * 1_366
    lost = Verdict(Plan.of(faults.EverythingFlushed, 1, 5), 10, 5, violations=broken)
    assert "| 0 (1,366 by loss of data) |" in table([lost])


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_the_documentation_quotes_a_table_with_every_fault() -> None:
    page = Path(__file__).parents[3] / "docs" / "explanation" / "safety.md"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")  # not the line below the header
    ]
    names = [row[0] for row in rows[rows.index(list(HEADER)) + 1 :]]
    assert names[: names.index("all")] == [fault.name for fault in FAULTS]
