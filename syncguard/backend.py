"""Everything that the author of a backend needs. ``syncguard.backends`` finds backends by URL.

- Required: ``LockBackend``, or ``AsyncLockBackend``. ``Lockable`` and ``AsyncLockable`` add the
  method ``lock`` and set ``is_async``.
- Required of a class that is used in URLs and settings: ``BackendClass``.
- Optional, one protocol for each part: ``Wakeable``, ``OpensExtendChannel``, ``ReleasesMany``,
  ``TurnGiver``, ``ListsLocks``, ``ReportsHealth``, ``ReadsLocation``, and their asyncio versions.
- Values and checks: arguments, results, and the functions that check input before any I/O.

``syncguard.testing.LockBackendConformance`` is the test suite that checks a backend.
"""

from __future__ import annotations

from syncguard._backend.listing_and_health import (
    AsyncListsLocks,
    Health,
    ListsLocks,
    LockPage,
    ReportsHealth,
    Wanted,
    health_of,
    listing_of,
    offers,
    sanitized,
)
from syncguard._backend.optional import (
    DEFAULT_MAX_DELAY_MS,
    AsyncExtendChannel,
    AsyncOpensExtendChannel,
    AsyncWaiter,
    AsyncWakeable,
    ExtendChannel,
    Extension,
    OpensExtendChannel,
    Refusal,
    ReleasesMany,
    Turn,
    TurnGiver,
    Waiter,
    Wakeable,
    release_many,
)
from syncguard._backend.required import (
    AsyncLockBackend,
    BackendClass,
    LockBackend,
    check_signal,
)
from syncguard._backend.settings import (
    Finding,
    FindingKind,
    GivenLocation,
    Location,
    ReadsLocation,
    SettingProblem,
    plain_location,
)
from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard._lock.release_on_exit import Disposal
from syncguard.clock import holder_clock_ms, is_live
from syncguard.constants import (
    DEFAULT_KEY_PREFIX,
    DEFAULT_TTL_MS,
    FENCE_MAX,
    FENCE_WARN,
    TIME_TOLERANCE_MS,
)
from syncguard.errors import ErrorContext, InvalidArgument, LockError, invalid_argument
from syncguard.keys import (
    display_hash,
    format_fence,
    generate_lock_id,
    make_storage_key,
    normalize_and_validate_key,
    validate_count,
    validate_holder,
    validate_lock_id,
    validate_ttl_ms,
)
from syncguard.lock import Lockable
from syncguard.lock_async import AsyncLockable
from syncguard.redacted_text import RedactedUrl, Secret
from syncguard.types import (
    CONTENDED,
    BackendCapabilities,
    Contended,
    ExtendResult,
    LockInfo,
    LockInfoDebug,
    NotAdopted,
    OnReleaseError,
    ReleaseResult,
    Signal,
)

__all__ = [
    "CONTENDED",
    "DEFAULT_KEY_PREFIX",
    "DEFAULT_MAX_DELAY_MS",
    "DEFAULT_TTL_MS",
    "FENCE_MAX",
    "FENCE_WARN",
    "TIME_TOLERANCE_MS",
    "Acquired",
    "AsyncAcquired",
    "AsyncExtendChannel",
    "AsyncListsLocks",
    "AsyncLockBackend",
    "AsyncLockable",
    "AsyncOpensExtendChannel",
    "AsyncWaiter",
    "AsyncWakeable",
    "BackendCapabilities",
    "BackendClass",
    "Contended",
    "Disposal",
    "ErrorContext",
    "ExtendChannel",
    "ExtendResult",
    "Extension",
    "Finding",
    "FindingKind",
    "GivenLocation",
    "Health",
    "InvalidArgument",
    "ListsLocks",
    "Location",
    "LockBackend",
    "LockError",
    "LockInfo",
    "LockInfoDebug",
    "LockPage",
    "Lockable",
    "NotAdopted",
    "OnReleaseError",
    "OpensExtendChannel",
    "ReadsLocation",
    "RedactedUrl",
    "Refusal",
    "ReleaseResult",
    "ReleasesMany",
    "ReportsHealth",
    "Secret",
    "SettingProblem",
    "Signal",
    "Turn",
    "TurnGiver",
    "Waiter",
    "Wakeable",
    "Wanted",
    "check_signal",
    "display_hash",
    "format_fence",
    "generate_lock_id",
    "health_of",
    "holder_clock_ms",
    "invalid_argument",
    "is_live",
    "listing_of",
    "make_storage_key",
    "normalize_and_validate_key",
    "offers",
    "plain_location",
    "release_many",
    "sanitized",
    "validate_count",
    "validate_holder",
    "validate_lock_id",
    "validate_ttl_ms",
]
