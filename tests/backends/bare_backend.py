"""A backend with the required parts only: it hides the optional parts of ``DictBackend``."""

from __future__ import annotations

from dict_backend import STORES, DictBackend

from syncguard.backend import Lockable


def delegated(name):
    return lambda self, *args, **kwargs: getattr(self.inner, name)(*args, **kwargs)


class BareBackend(Lockable):
    twin = None
    capabilities = DictBackend.capabilities

    def __init__(self, store, **options):
        self.inner = DictBackend(store, **options)
        self.hash, self.disposal = self.inner.hash, self.inner.disposal

    @classmethod
    def from_url(cls, url, *, key_prefix="syncguard", hash_secret=None, default_holder=None):
        options = {"hash_secret": hash_secret, "default_holder": default_holder}
        return cls(STORES[url], key_prefix=key_prefix, **options)

    acquire, release, extend = map(delegated, ("acquire", "release", "extend"))
    adopt, is_locked, lookup = map(delegated, ("adopt", "is_locked", "lookup"))
    lookup_raw, close = map(delegated, ("lookup_raw", "close"))
