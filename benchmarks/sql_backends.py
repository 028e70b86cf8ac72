"""Locks in PostgreSQL and in SQLite beside their peers: all figures, in one run of a few minutes.

Do not publish figures of a busy machine.

    pip install --group benchmarks
    python benchmarks/sql_backends.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = ("postgres.py", "sqlite.py")


def main() -> int:
    codes = []
    for name in PROGRAMS:
        print(f"\n# {name}\n", flush=True)
        codes.append(subprocess.run([sys.executable, Path(__file__).with_name(name)]).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
