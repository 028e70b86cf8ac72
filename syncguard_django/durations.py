"""Durations for people. ``locks.js`` formats them the same way in the browser."""

from __future__ import annotations

from typing import Final, NamedTuple


class Words(NamedTuple):
    """The words that differ between our languages; s, min and h are the same in all of them."""

    under_a_second: str
    days: str


ENGLISH: Final = Words("under 1 s", "d")


def for_people(ms: float, words: Words = ENGLISH) -> str:
    """Two units at most: ``42 s``, ``5 min 3 s``, ``3 h 20 min``, ``2 d 4 h``."""
    seconds = int(max(0, ms) // 1000)
    if seconds < 1:
        return words.under_a_second
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if not minutes:
        return f"{seconds} s"
    if not hours:
        return f"{minutes} min {seconds % 60} s"
    if not days:
        return f"{hours} h {minutes % 60} min"
    return f"{days} {words.days} {hours % 24} h"
