"""Many runs over all faults, for as long as it is told, and the table of their results.

python -m history [--minutes 10] [--seed 1] [--fault NAME] [--seconds 6] [--parallel 4]
                  [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from history.faults import FAULTS, fault_named
from history.plan import Plan
from history.runner import Verdict, run
from history.table import is_documented, table


def main() -> int:
    options = _options()
    verdicts: list[Verdict] = []
    for verdict in _verdicts(options):
        verdicts.append(verdict)
        count = len(verdict.violations)
        print(
            f"{len(verdicts):4} {verdict.plan.fault.__name__:28} seed {verdict.plan.seed:6}"
            f" {verdict.grants:6} grants {verdict.seconds:5.1f} s"
            + (f" {count} violations" if count else ""),
            flush=True,
        )
        if count and not is_documented(verdict):
            print(verdict, flush=True)
    print(table(verdicts))
    broken = any(verdict.violations and not is_documented(verdict) for verdict in verdicts)
    return int(broken or options.has_failed)


def _verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    """In parallel: a run spends most of its time waiting."""
    deadline = time.monotonic() + options.minutes * 60
    plans = _plans(options)
    with ThreadPoolExecutor(options.parallel) as pool:
        running = {
            pool.submit(run, plan, options.keep)
            for plan in itertools.islice(plans, options.parallel)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                if (error := future.exception()) is None:
                    yield future.result()
                else:  # of the harness or of a server: the other runs go on
                    traceback.print_exception(error)
                    options.has_failed = True
                if time.monotonic() < deadline:
                    running |= {
                        pool.submit(run, plan, options.keep) for plan in itertools.islice(plans, 1)
                    }


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    """One fault after the other, each round with the next seed; or the one run that is named."""
    if options.fault is not None and options.minutes == 0:
        yield Plan.of(options.fault, options.seed, options.seconds)
        return
    faults = FAULTS if options.fault is None else (options.fault,)
    for seed in itertools.count(options.seed):
        for fault in faults:
            yield Plan.of(fault, seed, options.seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tox run -e faults --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=None, help="how long; default 10")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first round")
    parser.add_argument("--fault", type=fault_named, help="only this one; once, without --minutes")
    parser.add_argument("--seconds", type=float, default=6.0, help="the length of a run")
    parser.add_argument("--parallel", type=int, default=4, help="how many runs at a time")
    parser.add_argument("--keep", type=Path, help="a folder for the histories with violations")
    options = parser.parse_args()
    options.has_failed = False
    if options.minutes is None:
        options.minutes = 0 if options.fault is not None else 10
    return options


if __name__ == "__main__":
    sys.exit(main())
