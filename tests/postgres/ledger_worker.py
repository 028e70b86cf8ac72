"""A program for ``test_faults``: several rounds of read, wait, write, under one lock.

python ledger_worker.py URL FOLDER ROUNDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from syncguard import Acquisition, lock
from syncguard.backends import from_url


def main(url: str, folder: str, rounds: str) -> None:
    counter, log = Path(folder, "counter"), Path(folder, "log")
    backend = from_url(url, timeout_ms=60_000)
    patient = Acquisition(timeout_ms=280_000, max_retries=100_000, backoff="fixed")
    for _ in range(int(rounds)):
        with lock(backend, "ledger", ttl_ms=120_000, acquisition=patient) as held:
            number = int(counter.read_text())
            time.sleep(0.0005)
            counter.write_text(str(number + 1))
            with log.open("a") as lines:
                lines.write(held.fence + "\n")
    backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
