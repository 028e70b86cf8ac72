"""Look up locks: which lock is held, and by whom. For people and pages only.

Do not decide a mutation by these results: the holder may change before the mutation. Release and
extend check ownership themselves, atomically.
"""

from __future__ import annotations

from syncguard._backend.required import AsyncLockBackend, LockBackend
from syncguard._lock.options import check_backend
from syncguard.traceback_locals import hides_arguments
from syncguard.types import LockInfo, LockInfoDebug, Signal


@hides_arguments
def get_by_key(backend: LockBackend, key: str, *, signal: Signal | None = None) -> LockInfo | None:
    """The live lock on a key, sanitized."""
    check_backend(backend, wants_async=False)
    return backend.lookup(key=key, signal=signal)


@hides_arguments
def get_by_id(
    backend: LockBackend, lock_id: str, *, signal: Signal | None = None
) -> LockInfo | None:
    """The live lock with this id, sanitized."""
    check_backend(backend, wants_async=False)
    return backend.lookup(lock_id=lock_id, signal=signal)


@hides_arguments
def get_by_key_raw(
    backend: LockBackend, key: str, *, signal: Signal | None = None
) -> LockInfoDebug | None:
    """The live lock on a key with its raw key and lock id. SENSITIVE: do not log it."""
    check_backend(backend, wants_async=False)
    return backend.lookup_raw(key=key, signal=signal)


@hides_arguments
def get_by_id_raw(
    backend: LockBackend, lock_id: str, *, signal: Signal | None = None
) -> LockInfoDebug | None:
    """The live lock with this id, with its raw key. SENSITIVE: do not log it."""
    check_backend(backend, wants_async=False)
    return backend.lookup_raw(lock_id=lock_id, signal=signal)


@hides_arguments
def owns(backend: LockBackend, lock_id: str, *, signal: Signal | None = None) -> bool:
    """Whether this id holds a live lock right now. For diagnostics only, never as a guard."""
    check_backend(backend, wants_async=False)
    return backend.lookup(lock_id=lock_id, signal=signal) is not None


@hides_arguments
async def aget_by_key(
    backend: AsyncLockBackend, key: str, *, signal: Signal | None = None
) -> LockInfo | None:
    """The live lock on a key, sanitized."""
    check_backend(backend, wants_async=True)
    return await backend.lookup(key=key, signal=signal)


@hides_arguments
async def aget_by_id(
    backend: AsyncLockBackend, lock_id: str, *, signal: Signal | None = None
) -> LockInfo | None:
    """The live lock with this id, sanitized."""
    check_backend(backend, wants_async=True)
    return await backend.lookup(lock_id=lock_id, signal=signal)


@hides_arguments
async def aget_by_key_raw(
    backend: AsyncLockBackend, key: str, *, signal: Signal | None = None
) -> LockInfoDebug | None:
    """The live lock on a key with its raw key and lock id. SENSITIVE: do not log it."""
    check_backend(backend, wants_async=True)
    return await backend.lookup_raw(key=key, signal=signal)


@hides_arguments
async def aget_by_id_raw(
    backend: AsyncLockBackend, lock_id: str, *, signal: Signal | None = None
) -> LockInfoDebug | None:
    """The live lock with this id, with its raw key. SENSITIVE: do not log it."""
    check_backend(backend, wants_async=True)
    return await backend.lookup_raw(lock_id=lock_id, signal=signal)


@hides_arguments
async def aowns(backend: AsyncLockBackend, lock_id: str, *, signal: Signal | None = None) -> bool:
    """Whether this id holds a live lock right now. For diagnostics only, never as a guard."""
    check_backend(backend, wants_async=True)
    return await backend.lookup(lock_id=lock_id, signal=signal) is not None
