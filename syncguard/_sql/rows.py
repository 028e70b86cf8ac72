"""From the row of a lock to the values that a backend returns."""

from __future__ import annotations

from collections.abc import Callable

from syncguard._backend.granted import Granted, log_fence_warning
from syncguard.clock import is_live
from syncguard.constants import FENCE_WARN
from syncguard.errors import LockError
from syncguard.types import LockInfoDebug


def granted(
    display_hash: Callable[[str], str], lock_id: str, fence: str, expires_at_ms: int, key: str
) -> Granted:
    """A lock that was just acquired or adopted. Warns of a fence near its maximum."""
    if fence > FENCE_WARN:
        log_fence_warning(display_hash(key), fence)
    return Granted(lock_id, fence, expires_at_ms, key)


def fence_exhausted() -> LockError:
    """The error for a counter that reached its maximum."""
    return LockError("Internal", "the fence counter of this key is at its maximum: use another key")


def lock_info(
    display_hash: Callable[[str], str],
    *,
    key: str,
    lock_id: str,
    expires_at_ms: int,
    acquired_at_ms: int,
    fence: str,
    holder: str | None,
    now_ms: int,
) -> LockInfoDebug | None:
    """The lock of a row, or None if it is not live. SENSITIVE."""
    if not is_live(expires_at_ms, now_ms):
        return None
    return LockInfoDebug(
        key_hash=display_hash(key),
        lock_id_hash=display_hash(lock_id),
        expires_at_ms=expires_at_ms,
        acquired_at_ms=acquired_at_ms,
        fence=fence,
        holder=holder,
        key=key,
        lock_id=lock_id,
    )
