"""Distributed locks with fencing tokens.

Only public names. Imports no client library: the backends are in ``syncguard.redis``.
"""

from syncguard._backend.optional import Turn, TurnGiver
from syncguard._backend.required import LockBackend
from syncguard._lock.handles import Acquired, has_fence
from syncguard._lock.held import Held, OnLost
from syncguard.clock import is_live, redis_server_time_ms
from syncguard.constants import (
    DEFAULT_KEY_PREFIX,
    DEFAULT_TTL_MS,
    FENCE_MAX,
    FENCE_WARN,
    MAX_KEY_LENGTH_BYTES,
    TIME_TOLERANCE_MS,
)
from syncguard.current import current_fence, current_lock
from syncguard.diagnostics import get_by_id, get_by_id_raw, get_by_key, get_by_key_raw, owns
from syncguard.errors import (
    ERROR_CODES,
    Aborted,
    AcquisitionTimeout,
    AuthFailed,
    ErrorContext,
    Internal,
    InvalidArgument,
    LockError,
    LockLost,
    NetworkTimeout,
    RateLimited,
    ServiceUnavailable,
)
from syncguard.keys import (
    format_fence,
    generate_lock_id,
    hash_key,
    keyed_hash,
    make_storage_key,
    normalize_and_validate_key,
    validate_lock_id,
)
from syncguard.lock import Lock, hold, lock
from syncguard.short_ttl_warning import ShortTTLWarning
from syncguard.telemetry import with_telemetry
from syncguard.types import (
    Acquisition,
    BackendCapabilities,
    Contended,
    ExtendResult,
    LockEvent,
    LockInfo,
    LockInfoDebug,
    NotAdopted,
    OnReleaseError,
    ReleaseErrorContext,
    ReleaseResult,
    Signal,
)

__all__ = [
    "DEFAULT_KEY_PREFIX",
    "DEFAULT_TTL_MS",
    "ERROR_CODES",
    "FENCE_MAX",
    "FENCE_WARN",
    "MAX_KEY_LENGTH_BYTES",
    "TIME_TOLERANCE_MS",
    "Aborted",
    "Acquired",
    "Acquisition",
    "AcquisitionTimeout",
    "AuthFailed",
    "BackendCapabilities",
    "Contended",
    "ErrorContext",
    "ExtendResult",
    "Held",
    "Internal",
    "InvalidArgument",
    "Lock",
    "LockBackend",
    "LockError",
    "LockEvent",
    "LockInfo",
    "LockInfoDebug",
    "LockLost",
    "NetworkTimeout",
    "NotAdopted",
    "OnLost",
    "OnReleaseError",
    "RateLimited",
    "ReleaseErrorContext",
    "ReleaseResult",
    "ServiceUnavailable",
    "ShortTTLWarning",
    "Signal",
    "Turn",
    "TurnGiver",
    "current_fence",
    "current_lock",
    "format_fence",
    "generate_lock_id",
    "get_by_id",
    "get_by_id_raw",
    "get_by_key",
    "get_by_key_raw",
    "has_fence",
    "hash_key",
    "hold",
    "is_live",
    "keyed_hash",
    "lock",
    "make_storage_key",
    "normalize_and_validate_key",
    "owns",
    "redis_server_time_ms",
    "validate_lock_id",
    "with_telemetry",
]
