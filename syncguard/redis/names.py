"""The names of all keys that SyncGuard stores in Redis. Only this module builds them.

::

    {prefix}:{key}                     the lock: JSON, with a TTL
    {prefix}:id:{lock_id}              index: lock id -> storage key of the lock, same TTL
    {prefix}:fence:{storage key}       fence counter: no TTL, never deleted
    {prefix}:id::live                  sorted set: storage keys of live locks by expiry
    {prefix}:id::fences                number of fence counters ever created
    {prefix}:id::waiting:{storage key} flag: a caller waits for this lock; expires after the wait
    {prefix}:id::wake:{storage key}    list with at most one wake-up; short TTL
    {prefix}:id::bell:{listener}       list: interrupts the BLPOP of one process; short TTL
    {prefix}:id::queue:{storage key}   retry times of refused callers; kept a minute after last use

The first three are exactly those of the specification, so that clients in other languages share
our locks. The others start with ``id::``, which no lock id and no accepted user key starts with.

On a Redis Cluster all names of one lock must be in one slot, and release knows only the lock id.
So on a cluster the key selects one of 64 buckets, ``{prefix}`` becomes ``{{prefix}:b}`` (a hash
tag) with the bucket's character ``b``, and every lock id starts with the bucket's character.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from functools import lru_cache
from typing import Final, NamedTuple

from syncguard.constants import MAX_KEY_LENGTH_BYTES
from syncguard.errors import invalid_argument
from syncguard.keys import (
    make_storage_key,
    normalize_and_validate_key,
    refuse_reserved_key,
    validate_key_prefix,
)

_logger = logging.getLogger("syncguard")

_BASE64URL: Final = "[A-Za-z0-9_-]{22}"
_HASHED: Final = re.compile(_BASE64URL)

KEY_BUDGET_BYTES: Final = 1000
RESERVE_BYTES: Final = 26
"""Space for ``:id:`` and a lock id after the longest storage key."""

BUCKETS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_CACHED_KEYS: Final = 1024

_INDEX_NAME_BYTES: Final = len("id:") + 22

quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
"""Encode text as JSON. ``json.dumps`` would create a new encoder on each call."""


class Space(NamedTuple):
    """The names that all locks of one backend (on a cluster: of one bucket) share."""

    prefix: str
    room: int
    """The longest name after ``head``, in bytes, that is stored without hashing."""
    head: str
    live: str
    tally: str
    waiting_head: str
    wake_head: str
    bell_head: str
    queue_head: str
    index_head: str

    @classmethod
    def of(cls, prefix: str) -> Space:
        # The longest possible name. Reject a prefix that is too long for it now, not at the
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
            bell_head=own + ":bell:",
            queue_head=own + ":queue:",
            index_head=own,
        )

    def storage_key(self, name: str) -> str:
        if name.isascii() and len(name) <= self.room:
            return self.head + name  # nothing to normalise and nothing to hash
        return make_storage_key(self.prefix, name, KEY_BUDGET_BYTES, RESERVE_BYTES)

    def fence_key(self, storage_key: str) -> str:
        """The same name as ``make_fence_key`` returns."""
        return self.storage_key(f"fence:{storage_key}")

    def index_key(self, lock_id: str) -> str:
        if self.room < _INDEX_NAME_BYTES:
            return self.storage_key(f"id:{lock_id}")
        return self.index_head + lock_id


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
        self.prefix: Final = validate_key_prefix(prefix)
        if clustered:
            _check_hash_tag(self.prefix)
        # The names of a longer prefix that begins with ours: a key must not reach them.
        counter = rf":fence:{re.escape(self.prefix)}:" if self.prefix else r"\A(.+):fence:\1:"
        self._inner_names: Final = re.compile(rf":id::|:id:{_BASE64URL}\Z|{counter}", re.DOTALL)
        # A lock's counter has the prefix twice. A longer name than the budget is hashed.
        room = KEY_BUDGET_BYTES - RESERVE_BYTES - len(":fence::") - MAX_KEY_LENGTH_BYTES
        self._longest_plain: Final = room // 2 - (len("{:b}") if clustered else 0)
        self._hashes_names: Final = len(self.prefix.encode()) > self._longest_plain
        self._clustered: Final = clustered
        self._spaces: Final = (
            {bucket: Space.of(f"{{{self.prefix}:{bucket}}}") for bucket in BUCKETS}
            if clustered
            else {"": Space.of(self.prefix)}
        )
        self.of = lru_cache(maxsize=_CACHED_KEYS)(self._of)

    def _of(self, key: str) -> LockNames:
        normalized = normalize_and_validate_key(key)
        refuse_reserved_key(normalized)
        if self._inner_names.search(normalized):
            raise invalid_argument(
                "a key must not contain ':id::', end with ':id:' and a lock id, or contain"
                " ':fence:' and the key_prefix: these are SyncGuard's own names under a key_prefix"
                " that begins with this one"
            )
        if self._hashes_names and _HASHED.fullmatch(normalized):
            raise invalid_argument(
                f"with a key_prefix of more than {self._longest_plain} bytes, a key must not be 22"
                " characters out of A-Z a-z 0-9 _ -: SyncGuard shortens its own names to that form"
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
        """All spaces: one, or 64 on a cluster."""
        return tuple(self._spaces.values())


def _check_hash_tag(prefix: str) -> None:
    """On a cluster a name's hash tag ends at the first ``}``, and that must be ours."""
    if prefix.startswith("}"):
        raise invalid_argument(
            "key_prefix must not start with '}' on a Redis Cluster: the names of one lock would be"
            " in different slots, and every acquire would fail"
        )
    if "}" in prefix:
        _logger.warning(
            "The key_prefix %r contains '}', which ends a hash tag: all locks are in one slot of"
            " the cluster, on one node.",
            prefix,
        )


def _bucket(key: str) -> str:
    return BUCKETS[hashlib.sha256(key.encode()).digest()[0] % len(BUCKETS)]
