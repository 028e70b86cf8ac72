"""The live locks of one or several aliases: what the status command and the admin page show.

Every function here sends a bounded number of requests; a page needs one. An alias whose server
fails is reported together with the results of the others.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from django.core.exceptions import ImproperlyConfigured

from syncguard import (
    LockBackend,
    LockError,
    LockInfo,
    LockInfoDebug,
    get_by_id_raw,
    get_by_key_raw,
    keyed_hash,
)
from syncguard.backend import Health, ListsLocks, health_of, listing_of, sanitized
from syncguard_django.configured_backends import locks
from syncguard_django.settings import configuration

T = TypeVar("T")

LISTED_AT_MOST: Final = 10_000
"""How many locks of one alias are read in order to sort or to search them."""


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A live lock of an alias, with durations by the server's clock."""

    using: str
    info: LockInfo
    held_ms: int
    remaining_ms: int
    key: str | None = field(default=None, repr=False)
    """The raw key if ``SHOW_KEYS`` is set. Only for admin users with the permission."""
    former_hashes: tuple[str, ...] = ()
    """The hashes of the key under ``SECRET_KEY_FALLBACKS``."""

    @property
    def short_fence(self) -> str:
        """Without the leading zeros, which programs need to compare fences as text."""
        return self.info.fence.lstrip("0") or "0"

    def has_hash(self, beginning: str) -> bool:
        """Whether the hash of the key, current or former, begins with this."""
        return any(h.startswith(beginning) for h in (self.info.key_hash, *self.former_hashes))


@dataclass(frozen=True, slots=True)
class Holder:
    """A live lock, with the lock id that releases it. The repr does not show the id."""

    lock: LiveLock
    lock_id: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """An alias whose backend failed or is not configured correctly."""

    using: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.using}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Listing:
    """Live locks, soonest to expire first; their total number; and the aliases that failed."""

    locks: list[LiveLock]
    total: int
    failures: tuple[Failure, ...]

    @property
    def is_complete(self) -> bool:
        return len(self.locks) >= self.total


@dataclass(frozen=True, slots=True)
class AliasHealth:
    """The state of an alias's server, as its backend describes it."""

    using: str
    report: Health


def page(aliases: Iterable[str], limit: int, offset: int = 0) -> Listing:
    """A page of all live locks. Reads only the first locks of each alias."""
    aliases = tuple(aliases)
    # With one alias, the server skips the locks before the page.
    start, size = (offset, limit) if len(aliases) == 1 else (0, offset + limit)
    found, total, failures = _read_all(aliases, lambda using: _live_and_total(using, size, start))
    merged = list(heapq.merge(*found, key=lambda lock: lock.info.expires_at_ms))
    first = offset - start
    return Listing(merged[first : first + limit], total, failures)


def everything(aliases: Iterable[str]) -> Listing:
    """Every live lock, up to ``LISTED_AT_MOST`` of each alias: to be sorted and searched."""
    found, total, failures = _read_all(
        aliases, lambda using: _live_and_total(using, LISTED_AT_MOST, 0)
    )
    merged = list(heapq.merge(*found, key=lambda lock: lock.info.expires_at_ms))
    return Listing(merged, total, failures)


def lookup(using: str, *, key: str | None = None, lock_id: str | None = None) -> Holder | None:
    """One live lock, by its raw key or lock id. Raises LockError."""
    inspector = locks.inspector(using)
    if key is not None:
        found = get_by_key_raw(inspector, key)
    else:
        found = get_by_id_raw(inspector, lock_id or "")
    return None if found is None else _holder(using, inspector, found)


def find(
    using: str, key_hash: str, fence: str, lock_id_hash: str, acquired_at_ms: str
) -> Holder | None:
    """The holder that a page showed, if it still holds the lock. Raises LockError.

    The hashes may be made with a former ``SECRET_KEY``: the page may be older than the change.
    """
    inspector, former = locks.inspector(using), _former_hash_functions(using)
    seen = (key_hash, lock_id_hash)

    def matches(info: LockInfoDebug) -> bool:
        return info.fence == fence and (
            (info.key_hash, info.lock_id_hash) == seen
            or any((hash(info.key), hash(info.lock_id)) == seen for hash in former)
        )

    listing = listing_of(inspector)
    for found in listing.find_raw(matches, fence=fence, acquired_at_ms=int(acquired_at_ms)):
        return _holder(using, inspector, found)
    return None


def find_by_hash(using: str, beginning: str, at_most: int) -> list[Holder]:
    """The holders whose key's hash, current or former, begins with this. Raises LockError."""
    inspector, former = locks.inspector(using), _former_hash_functions(using)

    def matches(info: LockInfoDebug) -> bool:
        return info.key_hash.startswith(beginning) or any(
            hash(info.key).startswith(beginning) for hash in former
        )

    found = listing_of(inspector).find_raw(matches, at_most=at_most)
    return [_holder(using, inspector, info) for info in found]


def hash_of(using: str, key: str) -> str:
    """The hash of a key as the alias shows it."""
    return locks.inspector(using).hash(key)


def count(using: str) -> int:
    """How many locks of an alias are live. Raises LockError."""
    return listing_of(locks.inspector(using)).count_live_locks()


def health(using: str) -> AliasHealth:
    """Read the state of an alias's server. Raises LockError."""
    return AliasHealth(using, health_of(locks.inspector(using)).health())


def attempt(using: str, read: Callable[[], T]) -> T | Failure:
    """Call ``read``. Returns its result, or a Failure if it raised."""
    try:
        return read()
    except LockError as error:
        return Failure(using, error.code, str(error))
    except ImproperlyConfigured as error:
        return Failure(using, "ImproperlyConfigured", str(error))


def _read_all(
    aliases: Iterable[str],
    read: Callable[[str], tuple[list[LiveLock], int]],
) -> tuple[list[list[LiveLock]], int, tuple[Failure, ...]]:
    found: list[list[LiveLock]] = []
    failures: list[Failure] = []
    total = 0
    for using in aliases:
        result = attempt(using, partial(read, using))
        if isinstance(result, Failure):
            failures.append(result)
        else:
            found.append(result[0])
            total += result[1]
    return found, total, tuple(failures)


def _live_and_total(using: str, limit: int, offset: int) -> tuple[list[LiveLock], int]:
    page = listing_of(locks.inspector(using)).page_raw(limit, offset)
    return [_live_lock(using, info, page.now_ms) for info in page.locks], page.total


def _holder(using: str, inspector: LockBackend, info: LockInfoDebug) -> Holder:
    # Locks expire by the server's clock. The local clock may differ: it is the fallback.
    if isinstance(inspector, ListsLocks):
        now_ms = inspector.page_raw(limit=0).now_ms
    else:
        now_ms = int(time.time() * 1000)
    return Holder(_live_lock(using, info, now_ms), info.lock_id)


def _live_lock(using: str, info: LockInfoDebug, now_ms: int) -> LiveLock:
    return LiveLock(
        using,
        sanitized(info),
        max(0, now_ms - info.acquired_at_ms),
        max(0, info.expires_at_ms - now_ms),
        info.key if configuration().of(using).show_keys else None,
        tuple(hash(info.key) for hash in _former_hash_functions(using)),
    )


def _former_hash_functions(using: str) -> tuple[Callable[[str], str], ...]:
    secrets = configuration().of(using).former_hash_secrets
    return tuple(partial(keyed_hash, secret) for secret in secrets)
