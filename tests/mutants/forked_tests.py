"""A pytest plugin: runs the collected tests once for each mutant, each time in a forked child.

Starting pytest and importing Django and Celery takes longer than most mutants need until a test
notices them. Here that happens once for each target.

``SYNCGUARD_MUTANTS`` names the target, the number of children at a time, and the file that gets one
line for each mutant: its number and what happened. What fails without a mutant is written to a file
of the same name with the ending ``.log``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

import pytest
from mutations import mutants_of
from replace_code import NotReplaceableError, replace
from targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
NOTICED, HANGS, SURVIVED, NOT_RUN = "noticed", "hangs", "survived", "not run"
AS_IT_IS = -1
"""The number of the run without a mistake, whose tests must pass."""

TIMEOUT_S = 300
"""A mutant that hangs is noticed. Tests that take this long on a busy machine would look the same:
give them more time, or run them alone."""
_NOT_REPLACEABLE = 77
_failures: list[Path] = []
"""The file for failures, in the child without a mutant; empty in all others."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> object:
    name, processes, results = os.environ["SYNCGUARD_MUTANTS"].split("|")
    target = next(each for each in TARGETS if each.name == name)
    file = ROOT / target.path
    text = file.read_text()
    mutants = mutants_of(text, file.suffix, target.functions)
    changed = {AS_IT_IS: text} | {n: mutant.apply(text) for n, mutant in enumerate(mutants)}
    children: dict[int, tuple[int, float]] = {}
    with Path(results).open("a") as output:
        for number, after in changed.items():
            while len(children) >= int(processes):
                _report_one(children, output)
            child = os.fork()
            if child == 0:
                if number == AS_IT_IS:
                    _failures.append(Path(results).with_suffix(".log"))
                _become(file, text, after)
                return None  # this child goes on as pytest, and ends with its exit code
            children[child] = number, time.monotonic() + TIMEOUT_S
        while children:
            _report_one(children, output)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for file in _failures:
        if report.failed:
            with file.open("a") as output:
                print(report.nodeid, report.longreprtext, sep="\n", file=output)


def _become(file: Path, before: str, after: str) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        replace(file, before, after)
    except NotReplaceableError:
        os._exit(_NOT_REPLACEABLE)


def _report_one(children: dict[int, tuple[int, float]], output: TextIO) -> None:
    """Wait until one child has ended, and write what happened."""
    while True:
        for child, (number, until) in children.items():
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == 0 and time.monotonic() < until:
                continue
            if pid == 0:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                result = HANGS
            else:
                code = os.waitstatus_to_exitcode(status)
                result = {0: SURVIVED, 1: NOTICED, 2: NOTICED}.get(code, NOT_RUN)
            del children[child]
            print(f"{number} {result}", file=output, flush=True)
            return
        time.sleep(0.01)
