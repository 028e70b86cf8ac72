"""The response to a caller that did not get the lock: its text, and when to retry."""

from __future__ import annotations

import math
import time
from typing import Final

from syncguard import LockError, LockInfo
from syncguard_django.configured_backends import alocks, locks

TEXT: Final = "This resource is locked. Try again later."


def lookup_or_none(key: str, using: str) -> LockInfo | None:
    """Look up the lock. None if it is free, or if the lookup fails."""
    try:
        return locks[using].lookup(key=key)
    except LockError:
        return None


async def lookup_or_none_async(key: str, using: str) -> LockInfo | None:
    """The same for asyncio."""
    try:
        return await alocks[using].lookup(key=key)
    except LockError:
        return None


def retry_after_s(info: LockInfo | None, ttl_ms: int) -> int:
    """The seconds until the holder's lock expires: at least 1, at most the TTL."""
    remaining_ms = ttl_ms if info is None else info.expires_at_ms - time.time() * 1000
    return math.ceil(max(1.0, min(remaining_ms, ttl_ms) / 1000))
