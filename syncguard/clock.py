"""Time: the one liveness predicate, the server's clock, and the holder's own clock.

Every decision "is this lock live?" goes through ``is_live``; the Lua scripts repeat the same
comparison with the tolerance as an argument, so that the number is written in one place.
"""

from __future__ import annotations

import time

from syncguard.constants import TIME_TOLERANCE_MS
from syncguard.errors import invalid_argument

__all__ = [
    "TIME_TOLERANCE_MS",
    "holder_clock_ms",
    "is_live",
    "monotonic_ms",
    "redis_server_time_ms",
]


def is_live(expires_at_ms: int, now_ms: int, tolerance_ms: int = TIME_TOLERANCE_MS) -> bool:
    """Whether a lock that expires at ``expires_at_ms`` counts as held at ``now_ms``."""
    try:
        return bool(expires_at_ms > now_ms - tolerance_ms)
    except TypeError:
        raise invalid_argument("times must be whole numbers of milliseconds") from None


def redis_server_time_ms(time_reply: tuple[int | str | bytes, int | str | bytes]) -> int:
    """Milliseconds since the epoch from the two parts of Redis's TIME (seconds, microseconds)."""
    try:
        seconds, microseconds = time_reply
        return int(seconds) * 1000 + int(microseconds) // 1000
    except (TypeError, ValueError, OverflowError):
        raise invalid_argument(
            "Redis's TIME is a pair: whole seconds and whole microseconds"
        ) from None


# CLOCK_BOOTTIME runs while the machine is suspended, and so does the TTL on the server. The plain
# monotonic clock stops: after a suspend longer than the TTL, a lost lock would look held.
if hasattr(time, "CLOCK_BOOTTIME"):

    def holder_clock_ms() -> float:
        """The holder's own clock, in milliseconds; never set back, and runs during suspend."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6

else:  # pragma: no cover - Linux has CLOCK_BOOTTIME; macOS's monotonic clock runs in suspend too

    def holder_clock_ms() -> float:
        """The holder's own clock, in milliseconds; never set back."""
        return time.monotonic_ns() / 1e6


def monotonic_ms() -> float:
    """The plain monotonic clock, in milliseconds: for waiting, which a suspend may prolong."""
    return time.monotonic() * 1000
