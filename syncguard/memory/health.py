"""The state of a store in memory, for an operator: nothing can be wrong with it."""

from __future__ import annotations

from syncguard._backend.listing_and_health import Health


def make_health(live: int, fences: int) -> Health:
    """What ``syncguard_status --check`` shows, as text and as JSON."""
    return Health(
        facts=(
            ("server", "the memory of this process"),
            ("live locks", f"{live:,}"),
            ("fence counters", f"{fences:,}"),
        ),
        fields={"server": "memory", "liveLocks": live, "fenceCounters": fences},
    )
