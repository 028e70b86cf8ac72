"""What a caller without the lock is told: the words, and after how many seconds to try again."""

from __future__ import annotations

import math
import time
from typing import Final

from syncguard import LockError, LockInfo
from syncguard_django.configured_backends import alocks, locks

TEXT: Final = "This resource is locked. Try again later."


def ask(key: str, using: str) -> LockInfo | None:
    """Who holds the lock, if that can be learned."""
    try:
        return locks[using].lookup(key=key)
    except LockError:
        return None


async def ask_async(key: str, using: str) -> LockInfo | None:
    """The same, in an event loop."""
    try:
        return await alocks[using].lookup(key=key)
    except LockError:
        return None


def retry_after_s(info: LockInfo | None, ttl_ms: int) -> int:
    """When the holder's time is over at the latest: a number of seconds within our TTL."""
    remaining_ms = ttl_ms if info is None else info.expires_at_ms - time.time() * 1000
    return math.ceil(max(1.0, min(remaining_ms, ttl_ms) / 1000))
