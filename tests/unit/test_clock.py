"""Time: one predicate for liveness, one tolerance, and a clock that runs in suspend."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import syncguard
from syncguard import TIME_TOLERANCE_MS, InvalidArgument, is_live, redis_server_time_ms
from syncguard.clock import holder_clock_ms, monotonic_ms
from syncguard.constants import CLEANUP_GUARD_MS

PACKAGE = Path(syncguard.__file__).parent


@pytest.mark.parametrize(
    ("expires_at_ms", "live"), [(9_001, True), (9_000, False), (8_999, False), (10_000, True)]
)
def test_a_lock_is_live_until_its_expiry_plus_the_tolerance(expires_at_ms, live):
    assert is_live(expires_at_ms, 10_000, 1_000) is live


@pytest.mark.parametrize(
    "call",
    [
        lambda: is_live(None, 10_000),
        lambda: is_live(9_001, "now"),
        lambda: redis_server_time_ms(("now", "then")),
        lambda: redis_server_time_ms(12),
    ],
)
def test_a_time_that_is_none_is_an_invalid_argument(call):
    with pytest.raises(InvalidArgument):
        call()


def test_the_default_tolerance_is_the_constant():
    assert is_live(9_001, 10_000)
    assert not is_live(9_000, 10_000)


def test_the_tolerance_is_one_second_and_cleanup_waits_for_two():
    assert TIME_TOLERANCE_MS == 1_000
    assert CLEANUP_GUARD_MS >= 2_000


@pytest.mark.parametrize("reply", [(12, 345_999), ("12", "345999"), (b"12", b"345999")])
def test_the_servers_time_is_truncated_to_milliseconds(reply):
    assert redis_server_time_ms(reply) == 12_345


def test_the_tolerance_is_written_in_one_place():
    """No module compares an expiry with a literal number; all use the constant."""
    owners = {PACKAGE / "constants.py"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                if any("TOLERANCE" in name for name in names):
                    # Another name of the same constant is allowed; a number is not.
                    assert path in owners or "TIME_TOLERANCE_MS" in ast.dump(node), path


def test_no_script_contains_the_tolerance_or_the_cleanup_guard():
    for script in (PACKAGE / "redis" / "lua").glob("*.lua"):
        code = [line.split("--")[0] for line in script.read_text("utf-8").splitlines()]
        numbers = " ".join(code)
        assert "2000" not in numbers, script.name
        # 1000 may occur only to convert between seconds and milliseconds.
        assert numbers.count("1000") == 2 * numbers.count(
            "time[1] * 1000 + math.floor(time[2] / 1000)"
        )


def test_the_holders_clock_runs_and_counts_milliseconds():
    before, monotonic = holder_clock_ms(), time.monotonic()
    while time.monotonic() - monotonic < 0.01:
        pass
    assert holder_clock_ms() - before >= 9.9


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no CLOCK_BOOTTIME")
def test_the_holders_clock_runs_in_suspend(monkeypatch):
    """After a suspend of an hour, only CLOCK_BOOTTIME is an hour ahead of the monotonic clock."""
    now = {time.CLOCK_MONOTONIC: 5_000_000_000, time.CLOCK_BOOTTIME: 3_605_000_000_000}
    monkeypatch.setattr(time, "clock_gettime_ns", now.__getitem__)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[time.CLOCK_MONOTONIC])
    monkeypatch.setattr(time, "monotonic", lambda: now[time.CLOCK_MONOTONIC] / 1e9)
    assert holder_clock_ms() == 3_605_000
    assert monotonic_ms() == 5_000
