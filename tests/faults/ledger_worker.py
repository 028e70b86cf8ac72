"""A program for ``test_mutual_exclusion``: several rounds of read, wait, write, under one lock.

python ledger_worker.py PORT FOLDER ROUNDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import redis

from syncguard import Acquisition, lock
from syncguard.redis import RedisBackend


def main(port: str, folder: str, rounds: str) -> None:
    counter, log = Path(folder, "counter"), Path(folder, "log")
    client = redis.Redis(port=int(port))
    backend = RedisBackend(client)
    # The default policy with ten retries, but a long time limit.
    patient = Acquisition(timeout_ms=110_000)
    for _ in range(int(rounds)):
        with lock(backend, "ledger", ttl_ms=30_000, acquisition=patient) as held:
            number = int(counter.read_text())
            time.sleep(0.0005)
            counter.write_text(str(number + 1))
            with log.open("a") as lines:
                lines.write(held.fence + "\n")
    backend.close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
