"""A program for ``test_processes``: several rounds of read, wait, write, under one lock.

python ledger_worker.py PATH FOLDER ROUNDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from syncguard import Acquisition, lock
from syncguard.sqlite import SQLiteBackend


def main(path: str, folder: str, rounds: str) -> None:
    counter, log = Path(folder, "counter"), Path(folder, "log")
    # The default policy with ten retries, but a long time limit.
    patient = Acquisition(timeout_ms=250_000)
    with SQLiteBackend(path, timeout_ms=60_000) as backend:
        for _ in range(int(rounds)):
            with lock(backend, "ledger", ttl_ms=120_000, acquisition=patient) as held:
                number = int(counter.read_text())
                time.sleep(0.0005)
                counter.write_text(str(number + 1))
                with log.open("a") as lines:
                    lines.write(held.fence + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
