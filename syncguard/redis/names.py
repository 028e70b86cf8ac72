"""The names of everything that SyncGuard stores in Redis. All of them are made here.

::

    {prefix}:{key}                     the lock: JSON, with a TTL
    {prefix}:id:{lock_id}              index: lock id -> storage key of the lock, same TTL
    {prefix}:fence:{storage key}       fence counter: no TTL, never deleted
    {prefix}:id::live                  sorted set: storage keys of live locks by expiry
    {prefix}:id::fences                how many fence counters were made
    {prefix}:id::waiting:{storage key} somebody waits for this lock; lives as long as the wait
    {prefix}:id::wake:{storage key}    list with at most one wake-up; short-lived
    {prefix}:id::queue:{storage key}   when callers come back for this lock; a minute after the last

The first three are the specification's, byte for byte, so that clients in other languages share
our locks. The rest hides behind ``id::``, which no lock id and no accepted user key begins with.

On a Redis Cluster the names of one lock must share a slot, and release knows only the lock id.
So there the key chooses one of 64 buckets, ``{prefix}`` becomes ``{{prefix}:b}`` (a hash tag) with
the bucket's character ``b``, and every lock id begins with the bucket's character.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from functools import lru_cache
from typing import Final, NamedTuple

from syncguard.errors import invalid_argument
from syncguard.keys import make_storage_key, normalize_and_validate_key

KEY_BUDGET_BYTES: Final = 1000
RESERVE_BYTES: Final = 26
"""For ``:id:`` and a lock id behind the longest storage key."""

BUCKETS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_RESERVED: Final = ("fence", "id")
_CACHED_KEYS: Final = 1024

quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Text as JSON. ``json.dumps`` would make such an encoder each time."""


class Space(NamedTuple):
    """What all locks of one backend (on a cluster: of one bucket) share."""

    prefix: str
    room: int
    """How long a name behind the head may be without being hashed, in bytes."""
    head: str
    live: str
    tally: str
    waiting_head: str
    wake_head: str
    queue_head: str
    index_head: str

    @classmethod
    def of(cls, prefix: str) -> Space:
        # The longest name of all. A prefix that leaves no room for it is refused now, not at the
        # first lock.
        make_storage_key(prefix, "id:" + "x" * 22, KEY_BUDGET_BYTES, RESERVE_BYTES)
        head = f"{prefix}:" if prefix else ""
        own = f"{head}id:"
        return cls(
            prefix,
            room=KEY_BUDGET_BYTES - RESERVE_BYTES - len(head.encode()),
            head=head,
            live=own + ":live",
            tally=own + ":fences",
            waiting_head=own + ":waiting:",
            wake_head=own + ":wake:",
            queue_head=own + ":queue:",
            index_head=own,
        )

    def storage_key(self, name: str) -> str:
        if name.isascii() and len(name) <= self.room:
            return self.head + name  # nothing to normalise and nothing to hash
        return make_storage_key(self.prefix, name, KEY_BUDGET_BYTES, RESERVE_BYTES)

    def fence_key(self, storage_key: str) -> str:
        """As ``make_fence_key`` has it."""
        return self.storage_key(f"fence:{storage_key}")

    def index_key(self, lock_id: str) -> str:
        return self.storage_key(f"id:{lock_id}")


class LockNames(NamedTuple):
    """The names of one lock."""

    key: str
    json: str
    bucket: str
    space: Space
    lock: str
    fence: str
    waiting: str
    wake: str

    def __repr__(self) -> str:
        return f"<LockNames in {self.space.prefix!r}>"


class Names:
    """The naming scheme of one backend: a prefix, with or without the buckets of a cluster."""

    def __init__(self, prefix: str, *, clustered: bool = False) -> None:
        self.prefix: Final = _validated_prefix(prefix)
        self._clustered: Final = clustered
        self._spaces: Final = (
            {bucket: Space.of(f"{{{self.prefix}:{bucket}}}") for bucket in BUCKETS}
            if clustered
            else {"": Space.of(self.prefix)}
        )
        self.of = lru_cache(maxsize=_CACHED_KEYS)(self._of)

    def _of(self, key: str) -> LockNames:
        normalized = normalize_and_validate_key(key)
        for word in _RESERVED:
            if normalized.startswith(word + ":"):
                raise invalid_argument(
                    f"a key must not begin with '{word}:': it would name SyncGuard's own records"
                )
        bucket = _bucket(normalized) if self._clustered else ""
        space = self._spaces[bucket]
        lock = space.storage_key(normalized)
        fence = space.fence_key(lock)
        waiting, wake = space.waiting_head + lock, space.wake_head + lock
        return LockNames(normalized, quoted(normalized), bucket, space, lock, fence, waiting, wake)

    def index(self, lock_id: str) -> str:
        return self.space_of(lock_id).index_key(lock_id)

    def space_of(self, lock_id: str) -> Space:
        return self._spaces[self.bucket_of(lock_id)]

    def bucket_of(self, lock_id: str) -> str:
        return lock_id[0] if self._clustered else ""

    def spaces(self) -> tuple[Space, ...]:
        """Every space there is: one, or the 64 of a cluster."""
        return tuple(self._spaces.values())


def _bucket(key: str) -> str:
    return BUCKETS[hashlib.sha256(key.encode()).digest()[0] % len(BUCKETS)]


def _validated_prefix(prefix: str) -> str:
    if not isinstance(prefix, str):
        raise invalid_argument(f"key_prefix must be a str, not {type(prefix).__name__}")
    stripped = unicodedata.normalize("NFC", prefix).rstrip(":")
    if any(segment in _RESERVED for segment in stripped.split(":")):
        raise invalid_argument(
            "key_prefix must not contain a segment 'fence' or 'id': locks and fence counters would"
            " share names, and cleaning up the one could delete the other"
        )
    return stripped
