"""Runs the tests against every mutant of the targets, and lists the mutants that survive.

    python tests/mutants/run.py                  all targets
    python tests/mutants/run.py acquire held     targets by name

Each mutant lives in a copy of the packages in a temporary folder, ahead of the installed ones on
the path. A survivor is a hole in the tests, or changes nothing that anybody can see; the latter are
listed in ``explained.txt`` with the reason. Ends with 1 if another one survives.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutations import Mutant, mutants_of
from targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("syncguard", "syncguard_celery", "syncguard_django")
TIMEOUT_S = 300
"""A mutant that hangs is noticed."""


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


def is_killed(target: Target, mutant: Mutant | None) -> bool:
    """Whether the tests of the target fail with this mutant. None: the code as it is."""
    with tempfile.TemporaryDirectory(prefix="syncguard-mutant-") as folder:
        for package in PACKAGES:
            shutil.copytree(ROOT / package, Path(folder) / package)
        if mutant is not None:
            file = Path(folder) / target.path
            file.write_text(mutant.apply(file.read_text()))
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        # The script, not "python -m pytest": that puts the checkout ahead of the mutant.
        command = [Path(sys.executable).with_name("pytest"), "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not rounds", "-p", "no:randomly", f"--timeout={TIMEOUT_S // 3}"]
        try:
            done = subprocess.run(
                [*command, *target.tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 1, 2):
            raise SystemExit(done.stdout.decode() + done.stderr.decode())
        return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="names of targets; all if none is given")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    targets = [each for each in TARGETS if not options.names or each.name in options.names]
    known, survivors = explained(), 0
    began = time.monotonic()
    for package in PACKAGES:  # once, and not for each mutant
        compileall.compile_dir(ROOT / package, quiet=1)
    print("| file | mutants | noticed | explained | survived |\n|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.processes) as threads:
        for target in targets:
            text = (ROOT / target.path).read_text()
            if is_killed(target, None):
                raise SystemExit(f"the tests of {target.path} fail without a mutant")
            if not is_killed(target, Mutant(1, 0, 0, "", "this is no program")):
                raise SystemExit(f"the tests of {target.path} do not run the mutants")
            mutants = mutants_of(text, Path(target.path).suffix, target.functions)
            verdicts = threads.map(functools.partial(is_killed, target), mutants)
            counts: Counter[str] = Counter()
            for mutant, killed in zip(mutants, verdicts, strict=True):
                name = identity(mutant, text)
                is_explained = (target.path, name) in known
                verdict = "noticed" if killed else "explained" if is_explained else "survived"
                counts[verdict] += 1
                if verdict == "survived":
                    print(f"{target.path} | {name} |", file=sys.stderr, flush=True)
            survivors += counts["survived"]
            row = (len(mutants), counts["noticed"], counts["explained"], counts["survived"])
            print(f"| `{target.path}` | {' | '.join(map(str, row))} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
