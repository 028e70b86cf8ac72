"""``Deadline``: until when an attempt of ``lock()`` may last, and the signal that ends it earlier.

For stores that can hang: each step of an attempt (connect, send, read) is bounded by the time that
is left.
"""

from __future__ import annotations

import time
from typing import Final

from syncguard._backend.required import check_signal
from syncguard.clock import monotonic_ms
from syncguard.errors import NetworkTimeout
from syncguard.types import Signal

SLICE_S: Final = 0.05
"""How long code that has a signal blocks at most before it checks the signal again."""


class Deadline:
    """One absolute point in time, on ``time.monotonic``, for all steps of an attempt."""

    __slots__ = ("at_ms", "signal")

    def __init__(self, at_ms: float, signal: Signal | None = None) -> None:
        self.at_ms: Final = at_ms
        self.signal: Final = signal

    @classmethod
    def after(cls, ms: float, signal: Signal | None = None) -> Deadline:
        """The deadline in so many milliseconds."""
        return cls(monotonic_ms() + ms, signal)

    def left_s(self) -> float:
        """The seconds that are left. Raises NetworkTimeout if none are, Aborted on the signal."""
        if self.signal is not None:
            check_signal(self.signal)
        left = self.at_ms / 1000 - time.monotonic()
        if left <= 0:
            raise NetworkTimeout("the lock service did not answer before the deadline")
        return left

    def slice_s(self) -> float:
        """The same, but at most the time after which the signal must be checked again."""
        left = self.left_s()
        return left if self.signal is None else min(left, SLICE_S)
