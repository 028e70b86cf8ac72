"""Locks in a dictionary of this process: a complete backend that uses only public names.

``dict://NAME`` is a dictionary; all backends with one name share it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace

from syncguard.backend import (
    CONTENDED,
    DEFAULT_KEY_PREFIX,
    DEFAULT_TTL_MS,
    Acquired,
    BackendCapabilities,
    Disposal,
    ErrorContext,
    ExtendResult,
    Health,
    Lockable,
    LockError,
    LockInfoDebug,
    LockPage,
    NotAdopted,
    ReleaseResult,
    check_signal,
    display_hash,
    format_fence,
    generate_lock_id,
    holder_clock_ms,
    invalid_argument,
    normalize_and_validate_key,
    sanitized,
    validate_count,
    validate_holder,
    validate_lock_id,
    validate_ttl_ms,
)


class Store:
    """Live locks and fence counters, by prefix and key."""

    def __init__(self):
        self.guard, self.is_down = threading.Lock(), False
        self.locks, self.fences = {}, defaultdict(int)


STORES = defaultdict(Store)


class DictBackend(Lockable):
    """Required: everything but the last part. Optional: ListsLocks and ReportsHealth."""

    capabilities = BackendCapabilities("dict", supports_fencing=True, time_authority="client")
    twin = f"{__name__}_async.AsyncDictBackend"

    def __init__(self, store, *, key_prefix=DEFAULT_KEY_PREFIX, on_release_error=None, **options):
        self.store, self.prefix = store, key_prefix
        self.disposal = Disposal.of(on_release_error, None)
        self.hash = display_hash(options.pop("hash_secret", None))
        self.default_holder = options.pop("default_holder", None) or (lambda: None)
        if options:
            raise invalid_argument(f"a dictionary has no option {', '.join(options)}")

    @classmethod
    def from_url(cls, url, **options):
        return cls(STORES[url], **options)

    def acquire(self, key, ttl_ms=DEFAULT_TTL_MS, *, holder=None, signal=None):
        key = normalize_and_validate_key(key)
        validate_ttl_ms(ttl_ms)
        holder = validate_holder(self.default_holder() if holder is None else holder)
        sent_at_ms = holder_clock_ms()
        with self._open(signal) as (locks, now_ms):
            name = (self.prefix, key)
            if name in locks:
                return CONTENDED
            self.store.fences[name] += 1
            fence = format_fence(self.store.fences[name])
            made = LockInfoDebug("", "", now_ms + ttl_ms, now_ms, fence, holder, key=key)
            info = locks[name] = replace(made, lock_id=generate_lock_id())
        return self._handle(info, ttl_ms, sent_at_ms)

    def release(self, lock_id, *, signal=None):
        validate_lock_id(lock_id)
        with self._open(signal) as (locks, _):
            for name in self._names(locks, lock_id):
                del locks[name]
                return ReleaseResult(True)
        return ReleaseResult(False, "not-found")

    def extend(self, lock_id, ttl_ms=DEFAULT_TTL_MS, *, signal=None):
        validate_ttl_ms(ttl_ms)
        validate_lock_id(lock_id)
        with self._open(signal) as (locks, now_ms):
            for name in self._names(locks, lock_id):
                locks[name] = replace(locks[name], expires_at_ms=now_ms + ttl_ms)
                return ExtendResult(True, now_ms + ttl_ms)
        return ExtendResult(False, None, "not-found")

    def adopt(self, lock_id, ttl_ms=DEFAULT_TTL_MS, *, holder=None, signal=None):
        fresh = {"lock_id": generate_lock_id()} | ({"holder": holder} if holder else {})
        validate_ttl_ms(ttl_ms), validate_holder(holder)
        sent_at_ms = holder_clock_ms()
        validate_lock_id(lock_id)
        with self._open(signal) as (locks, now_ms):
            for name in self._names(locks, lock_id):
                locks[name] = replace(locks[name], expires_at_ms=now_ms + ttl_ms, **fresh)
                return self._handle(locks[name], ttl_ms, sent_at_ms)
        return NotAdopted()

    def is_locked(self, key, *, signal=None):
        return self.lookup(key=key, signal=signal) is not None

    def lookup(self, *, key=None, lock_id=None, signal=None):
        info = self.lookup_raw(key=key, lock_id=lock_id, signal=signal)
        return None if info is None else sanitized(info)

    def lookup_raw(self, *, key=None, lock_id=None, signal=None):
        if (key is None) == (lock_id is None):
            raise invalid_argument("lookup takes either key or lock_id, and not both")
        key = validate_lock_id(lock_id) if key is None else normalize_and_validate_key(key)
        check_signal(signal)
        found = self.find_raw(lambda info: key == (info.lock_id if lock_id else info.key))
        return found[0] if found else None

    def close(self): ...

    # -- optional: ListsLocks and ReportsHealth

    def page_raw(self, limit=100, offset=0):
        validate_count("limit", limit), validate_count("offset", offset)
        with self._open() as (locks, now_ms):
            own = [self._shown(info) for name, info in locks.items() if name[0] == self.prefix]
        own.sort(key=lambda info: info.expires_at_ms)
        return LockPage(own[offset : offset + limit], len(own), now_ms)

    def live_locks(self, limit=100, offset=0):
        return [sanitized(info) for info in self.page_raw(limit, offset).locks]

    def count_live_locks(self):
        return self.page_raw(0).total

    def find_raw(self, is_wanted, at_most=1, *, fence="", acquired_at_ms=None):  # noqa: ARG002
        every = self.page_raw(10**9).locks
        return [i for i in every if fence in ("", i.fence) and is_wanted(i)][:at_most]

    def force_release(self, key_hash, *, fence, lock_id_hash):
        seen = (key_hash, fence, lock_id_hash)
        if not all(isinstance(mark, str) and mark for mark in seen):
            raise invalid_argument("key_hash, fence and lock_id_hash must be non-empty")
        for info in self.find_raw(lambda i: (i.key_hash, i.fence, i.lock_id_hash) == seen):
            return self.release(info.lock_id)
        return ReleaseResult(False, "not-found")

    def health(self):
        live = self.count_live_locks()
        return Health((("server", "a dictionary"), ("live locks", str(live))), {"liveLocks": live})

    # -- private

    @contextmanager
    def _open(self, signal=None):
        """The live locks of the store and the time, for one thread at a time."""
        check_signal(signal)
        if self.store.is_down:
            raise LockError("ServiceUnavailable", context=ErrorContext(cause=ConnectionError()))
        with self.store.guard:
            locks, now_ms = self.store.locks, time.time_ns() // 1_000_000
            for name in [n for n, info in locks.items() if info.expires_at_ms <= now_ms]:
                del locks[name]
            yield locks, now_ms

    def _names(self, locks, lock_id):
        return [n for n, info in locks.items() if (n[0], info.lock_id) == (self.prefix, lock_id)]

    def _shown(self, info):
        return replace(info, key_hash=self.hash(info.key), lock_id_hash=self.hash(info.lock_id))

    def _handle(self, info, ttl_ms, sent_at_ms):
        lock = (info.lock_id, info.fence, info.expires_at_ms, info.key, ttl_ms, sent_at_ms)
        return Acquired(*lock, self.disposal, self)
