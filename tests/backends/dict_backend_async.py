"""The asyncio version of ``dict_backend``, with the same dictionaries."""

from __future__ import annotations

from dict_backend import DictBackend

from syncguard.backend import Acquired, AsyncAcquired, AsyncLockable


def awaited(name):
    """A coroutine method that calls the blocking one: a dictionary never blocks."""

    async def method(self, *args, **kwargs):
        result = getattr(self.inner, name)(*args, **kwargs)
        if not isinstance(result, Acquired):
            return result
        lock = (result.lock_id, result.fence, result.expires_at_ms, result.key, result.ttl_ms)
        return AsyncAcquired(*lock, result.sent_at_ms, result.disposal, self)

    return method


class AsyncDictBackend(AsyncLockable):
    twin = "dict_backend.DictBackend"
    capabilities = DictBackend.capabilities

    def __init__(self, store, **options):
        self.inner = DictBackend(store, **options)
        self.hash, self.disposal = self.inner.hash, self.inner.disposal

    @classmethod
    def from_url(cls, url, **options):
        self = cls.__new__(cls)
        self.inner = DictBackend.from_url(url, **options)
        self.hash, self.disposal = self.inner.hash, self.inner.disposal
        return self

    acquire, release, extend, adopt = map(awaited, ("acquire", "release", "extend", "adopt"))
    is_locked, lookup, lookup_raw = map(awaited, ("is_locked", "lookup", "lookup_raw"))
    live_locks, count_live_locks = map(awaited, ("live_locks", "count_live_locks"))
    page_raw, find_raw, force_release = map(awaited, ("page_raw", "find_raw", "force_release"))
    aclose = awaited("close")
