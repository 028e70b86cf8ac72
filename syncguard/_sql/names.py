"""The names of locks and fence counters in a table: the values of its primary keys.

::

    {prefix}:{key}                 the lock
    {prefix}:fence:{storage key}   its fence counter, derived in two steps

A name has at most 1700 bytes. Nothing is appended to it, so no bytes are reserved.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from syncguard.errors import invalid_argument
from syncguard.keys import (
    make_fence_key,
    make_storage_key,
    normalize_and_validate_key,
    refuse_reserved_key,
    validate_key_prefix,
)

KEY_LIMIT_BYTES: Final = 1700
RESERVE_BYTES: Final = 0
_CACHED_KEYS: Final = 1024


class RowNames(NamedTuple):
    """The names of one lock."""

    key: str
    """The user's key, normalised."""
    lock: str
    fence: str

    def __repr__(self) -> str:
        return "<RowNames>"


class Names:
    """The naming scheme of one backend. The prefix may be empty."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = validate_key_prefix(prefix)
        self.head: Final = f"{self.prefix}:" if self.prefix else ""
        # Reject a prefix that is too long now, not at the first lock.
        make_fence_key(self.prefix, "x" * KEY_LIMIT_BYTES, KEY_LIMIT_BYTES, RESERVE_BYTES)
        self._cached = lru_cache(maxsize=_CACHED_KEYS)(self._of)

    def of(self, key: str) -> RowNames:
        """The names for a key. Raises InvalidArgument if the key is not valid."""
        try:
            return self._cached(key)
        except TypeError:  # an unhashable value cannot be a key
            raise invalid_argument(f"a key must be a str, not {type(key).__name__}") from None

    def _of(self, key: str) -> RowNames:
        normalized = normalize_and_validate_key(key)
        refuse_reserved_key(normalized)
        lock = make_storage_key(self.prefix, normalized, KEY_LIMIT_BYTES, RESERVE_BYTES)
        fence = make_fence_key(self.prefix, lock, KEY_LIMIT_BYTES, RESERVE_BYTES)
        return RowNames(normalized, lock, fence)

    def is_own(self, storage_key: str, user_key: str) -> bool:
        """Whether a row belongs to this prefix, and not to a longer one such as ``prefix:more``."""
        return make_storage_key(self.prefix, user_key, KEY_LIMIT_BYTES, RESERVE_BYTES) == (
            storage_key
        )
