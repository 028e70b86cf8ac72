"""Durations for people. ``locks.js`` says the same in the browser."""

from __future__ import annotations


def for_people(ms: float) -> str:
    """Two units at most: ``42 s``, ``5 min 3 s``, ``3 h 20 min``, ``2 d 4 h``."""
    seconds = int(max(0, ms) // 1000)
    if seconds < 1:
        return "under 1 s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if not minutes:
        return f"{seconds} s"
    if not hours:
        return f"{minutes} min {seconds % 60} s"
    if not days:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"
