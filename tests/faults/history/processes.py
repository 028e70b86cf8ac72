"""The worker processes of all runs. Runs are on several threads at a time.

Whenever multiprocessing starts a process, it reads the exit codes of all others, those of other
runs too. An exit code can be read once: of two threads that read it at the same time, the second
would get 255. So one thread at a time starts a process, or looks at how one has ended.
"""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from typing import Final

_turn: Final = threading.RLock()


def preload(*modules: str) -> None:
    """Import these once, for all processes."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))


class WorkerProcess(ForkServerProcess):
    """A process whose exit code is right."""

    def start(self) -> None:
        with _turn:
            super().start()

    @property
    def exitcode(self) -> int | None:
        with _turn:
            return super().exitcode

    def join(self, timeout: float | None = None) -> None:
        wait([self.sentinel], timeout)
        with _turn:
            super().join(0)

    def close(self) -> None:
        with _turn:
            super().close()
