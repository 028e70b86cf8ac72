"""``ManualClock``: a clock that only a test moves, for ``syncguard.memory``."""

from __future__ import annotations

from syncguard.errors import invalid_argument

_START_MS = 1_700_000_000_000


class ManualClock:
    """Milliseconds since the epoch. They stand still until a test calls ``advance``."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Move the clock forward. A lock whose TTL ends by this is free at once."""
        if type(ms) is not int or ms < 0:
            raise invalid_argument("a clock advances by a whole number of milliseconds, 0 or more")
        self.now_ms += ms
