"""Reports what the tests covered of each package; ends with 1 if it is less than 95 % of one.

Where there is no PostgreSQL, its backend cannot be tested. It is not counted then, and named.
"""

from __future__ import annotations

import subprocess
import sys

from syncguard.testing.postgres_programs import PostgresUnavailableError, find_program

PACKAGES = ("syncguard", "syncguard_django", "syncguard_celery")
OF_POSTGRES = ("syncguard/postgres/*", "syncguard/testing/postgres_*")


def not_counted() -> tuple[str, ...]:
    try:
        find_program("initdb")
    except PostgresUnavailableError:
        return OF_POSTGRES
    return ()


def report(package: str, omitted: tuple[str, ...]) -> int:
    command = [sys.executable, "-m", "coverage", "report", f"--include={package}/*"]
    if omitted:
        command.append(f"--omit={','.join(omitted)}")
    return subprocess.run(command, check=False).returncode


def main() -> int:
    omitted = not_counted()
    if omitted:
        print(f"NOT COUNTED: {', '.join(omitted)}: there is no PostgreSQL on this machine.")
    return max([report(package, omitted) for package in PACKAGES])


if __name__ == "__main__":
    sys.exit(main())
