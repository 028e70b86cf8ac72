"""Runs the tests against every mutant of the targets, and lists the mutants that survive.

    python tests/mutants/run.py                  all targets
    python tests/mutants/run.py acquire held     targets by name

Each mutant is put into a forked child of a pytest that has collected the tests (``forked_tests``).
A mutant that survives there, or that cannot be put into a running process, gets a new process: it
lives in a copy of the packages in a temporary folder, ahead of the installed ones on the path. So
it also reaches the processes that tests start.

A survivor is a hole in the tests, or changes nothing that anybody can see; the latter are
listed in ``explained.txt`` with the reason. Ends with 1 if another one survives. A mutant whose
tests hang is noticed, and listed, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from forked_tests import AS_IT_IS, HANGS, NOT_RUN, NOTICED, ROOT, SURVIVED, TIMEOUT_S
from mutations import Mutant, mutants_of
from targets import TARGETS, Target

EXPLAINED = "explained"
PACKAGES = ("syncguard", "syncguard_celery", "syncguard_django")


def explained() -> set[tuple[str, str]]:
    """The file and the text of each mutant that changes nothing: ``path | mutant | reason``."""
    lines = (Path(__file__).parent / "explained.txt").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {(path, mutant) for path, mutant, _reason in rows}


def identity(mutant: Mutant, text: str) -> str:
    """The mutant without its line number, which changes: the line's code, and the change."""
    line = text.splitlines()[mutant.line - 1].strip()
    before, after = (" ".join(part.split()) for part in (mutant.before, mutant.after))
    return f"{line} :: {before} -> {after}"


# The script, not "python -m pytest": that puts the checkout ahead of a mutant in another folder.
PYTEST = (
    str(Path(sys.executable).with_name("pytest")),
    *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not rounds"),
    f"--timeout={TIMEOUT_S // 3}",
)


def verdicts_of_children(target: Target, processes: int) -> dict[int, str]:
    """What the forked children of one pytest say of each mutant, by its number."""
    with tempfile.TemporaryDirectory(prefix="syncguard-mutants-") as folder:
        results = Path(folder, "results")
        failures = results.with_suffix(".log")
        for file in (results, failures):
            file.touch()
        environment = {
            **os.environ,
            "SYNCGUARD_MUTANTS": f"{target.name}|{processes}|{results}",
        }
        subprocess.run(
            [*PYTEST, "-p", "forked_tests", *target.tests],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        rows = [line.split(" ", 1) for line in results.read_text().splitlines()]
        verdicts = {int(number): verdict for number, verdict in rows}
        if verdicts.pop(AS_IT_IS, None) != SURVIVED:
            raise SystemExit(
                f"{failures.read_text()}the tests of {target.path} fail without a mutant"
            )
    return verdicts


def verdict_when_imported(target: Target, mutant: Mutant) -> str:
    """What the tests say in a new process, and in those that it starts, with this mutant."""
    with tempfile.TemporaryDirectory(prefix="syncguard-mutant-") as folder:
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, Path(folder) / package, ignore=ignored)
        file = Path(folder) / target.path
        file.write_text(mutant.apply(file.read_text()))
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*PYTEST, *target.tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return HANGS
        return NOTICED if done.returncode else SURVIVED


def verdicts_of(
    target: Target, mutants: list[Mutant], known: set[int], threads: Executor, processes: int
) -> list[str]:
    """What happened to each mutant. ``known`` are the numbers of those that are explained."""
    verdicts = verdicts_of_children(target, processes)
    for n in known:
        if verdicts.get(n) != NOTICED:  # also if its tests only took too long
            verdicts[n] = EXPLAINED
    left = [n for n in range(len(mutants)) if verdicts.get(n) in (None, SURVIVED, NOT_RUN)]
    broken = Mutant(1, 0, 0, "", "this is no program\n")
    if left and verdict_when_imported(target, broken) == SURVIVED:
        raise SystemExit(f"the tests of {target.path} do not run the mutants")
    again = threads.map(lambda n: verdict_when_imported(target, mutants[n]), left)
    verdicts.update(zip(left, again, strict=True))
    return [verdicts[n] for n in range(len(mutants))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="names of targets; all if none is given")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    targets = [each for each in TARGETS if not options.names or each.name in options.names]
    reasons, survivors = explained(), 0
    began = time.monotonic()
    print("| file | mutants | noticed | explained | survived |\n|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.processes) as threads:
        for target in targets:
            text = (ROOT / target.path).read_text()
            mutants = mutants_of(text, Path(target.path).suffix, target.functions)
            names = [identity(mutant, text) for mutant in mutants]
            known = {n for n, name in enumerate(names) if (target.path, name) in reasons}
            counts: Counter[str] = Counter()
            verdicts = verdicts_of(target, mutants, known, threads, options.processes)
            for name, verdict in zip(names, verdicts, strict=True):
                counts[verdict] += 1
                if verdict in (HANGS, SURVIVED):
                    print(f"{target.path} | {name} | {verdict}", file=sys.stderr, flush=True)
            survivors += counts[SURVIVED]
            noticed = counts[NOTICED] + counts[HANGS]
            row = (len(mutants), noticed, counts[EXPLAINED], counts[SURVIVED])
            print(f"| `{target.path}` | {' | '.join(map(str, row))} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
