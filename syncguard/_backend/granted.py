"""What a store answers for a lock that it granted, and the warning about a large fence."""

from __future__ import annotations

import logging
from typing import NamedTuple

from syncguard.constants import FENCE_MAX, FENCE_WARN

_logger = logging.getLogger("syncguard")


class Granted(NamedTuple):
    """The data of a lock that was just acquired or adopted."""

    lock_id: str
    fence: str
    expires_at_ms: int
    key: str

    def __repr__(self) -> str:
        return f"<Granted fence={self.fence}>"


def log_fence_warning(key_hash: str, fence: str) -> None:
    """Warn before a fence counter reaches its maximum, so that there is time to change the key."""
    _logger.warning(
        "Fence %s of key %s is above the warning threshold %s; above %s the key can no longer be"
        " locked.",
        fence,
        key_hash,
        FENCE_WARN,
        FENCE_MAX,
    )
