"""Limits and defaults. Every number of the specification is written here, once."""

from __future__ import annotations

from typing import Final

MAX_KEY_LENGTH_BYTES: Final = 512
"""Longest user key, in UTF-8 bytes after NFC normalisation."""

MAX_HOLDER_LENGTH_BYTES: Final = 256
"""Longest holder label, in UTF-8 bytes."""

DEFAULT_TTL_MS: Final = 30_000
"""The TTL if the caller gives none (the specification's BACKEND_DEFAULTS)."""

MAX_TTL_MS: Final = 365 * 24 * 3600 * 1000
"""Longest TTL accepted: a year. A longer one is probably a mistake."""

TIME_TOLERANCE_MS: Final = 1_000
"""The one tolerance of the liveness predicate; not configurable (ADR-005)."""

CLEANUP_GUARD_MS: Final = 2_000
"""Cleanup deletes only what expired longer ago than this, so that it cannot race with an extend."""

FENCE_DIGITS: Final = 15
FENCE_MAX: Final = "900000000000000"
FENCE_WARN: Final = "090000000000000"

DEFAULT_KEY_PREFIX: Final = "syncguard"
LOCK_ID_BYTES: Final = 16

# The defaults of lock()'s retry policy (the specification's LOCK_DEFAULTS).
DEFAULT_MAX_RETRIES: Final = 10
DEFAULT_RETRY_DELAY_MS: Final = 100
DEFAULT_ACQUISITION_TIMEOUT_MS: Final = 5_000
