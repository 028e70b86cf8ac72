"""A worker in a thread: visits one key after the other with the blocking lock."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass
from typing import Any

from history.observer import Choices, Observer
from syncguard import Acquisition, LockBackend, LockLost, hold, lock
from syncguard.clock import holder_clock_ms

PATIENCE = Acquisition(timeout_ms=1_500)
FORKED_CALLS = 5


@dataclass
class BlockingWorker:
    """Runs until a moment on the holder's clock."""

    backend: LockBackend
    seen: Observer
    choices: Choices

    def run(self, until_ms: float) -> None:
        while holder_clock_ms() < until_ms:
            visit = self.choices.visit()
            with self.seen.call(visit):
                getattr(self, visit)(self.choices.key())
            time.sleep(self.choices.pause_s())

    # -- the visits -------------------------------------------------------------------------------

    def short(self, key: str) -> None:
        self._stay(key, self.choices.short_s())

    def extended(self, key: str) -> None:
        self._stay(key, self.choices.beyond_ttl_s(), auto_extend=True, on_lost=self._on_lost)

    def overstayed(self, key: str) -> None:
        self._stay(key, self.choices.beyond_ttl_s())

    def watched(self, key: str) -> None:
        self._stay(key, self.choices.beyond_ttl_s(), on_lost=self._on_lost)

    def handle(self, key: str) -> None:
        """Acquire, extend, release, and release again."""
        ttl_ms = self.choices.ttl_ms
        result = self.backend.acquire(key, ttl_ms)
        if not result.ok:
            return
        self.seen.granted(key, result, ttl_ms)
        time.sleep(self.choices.short_s())
        self.seen.may_believe(result, ttl_ms)
        result.extend(ttl_ms)
        result.release()
        result.release()

    def handed_over(self, key: str) -> None:
        """Acquire, adopt under a new lock id, hold, and try what the old id can still do."""
        ttl_ms = self.choices.ttl_ms
        result = self.backend.acquire(key, ttl_ms)
        if not result.ok:
            return
        self.seen.granted(key, result, ttl_ms)
        self.seen.leaving(result)
        adopted = self.backend.adopt(result.lock_id, ttl_ms)
        if not adopted.ok:
            return
        self.seen.granted(key, adopted, ttl_ms, adopted=True)
        self._stay_in(hold(self.backend, adopted, on_lost=self._on_lost), self.choices.short_s())
        result.extend(ttl_ms)
        result.release()

    def forked(self, key: str) -> None:
        """Fork while the lock is held: the child must not believe in it, and has its own."""

        def fork(held: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forks beside threads
                pid = os.fork()
            if pid == 0:
                try:
                    if not self.seen.believes(held):
                        self.seen.told(held, "forked")
                    for _ in range(FORKED_CALLS):
                        with self.seen.call("forked child"):
                            self.short(self.choices.key())
                finally:
                    os._exit(0)
            children.append(pid)

        children: list[int] = []
        self._stay(key, self.choices.short_s(), during=fork)
        for pid in children:
            os.waitpid(pid, 0)

    # -- one block --------------------------------------------------------------------------------

    def _stay(self, key: str, seconds: float, *, during: Any = None, **options: Any) -> None:
        ttl_ms = self.choices.ttl_ms
        block = lock(self.backend, key, ttl_ms, acquisition=PATIENCE, **options)
        self._stay_in(block, seconds, key, during)

    def _stay_in(self, block: Any, seconds: float, key: str | None = None, during: Any = None):
        held = None
        try:
            with block as held:
                if key is not None:
                    self.seen.granted(key, held, self.choices.ttl_ms)
                if during is not None:
                    during(held)
                self._believe_for(held, seconds)
                self.seen.leaving(held)
        except LockLost:
            self.seen.told(held, "left")
        if held is not None:
            self.seen.left(held)

    def _believe_for(self, held: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.seen.believes(held) and time.monotonic() < end:
            time.sleep(min(0.02, max(0.0, end - time.monotonic())))

    def _on_lost(self, held: Any) -> None:
        self.seen.told(held, "on_lost")
