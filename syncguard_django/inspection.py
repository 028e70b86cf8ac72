"""The live locks of one or several aliases: what the status command and the admin page show.

Every question costs a bounded number of Redis commands, and none of them walks through the
keyspace. An alias whose Redis fails is reported beside what the others answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured

from syncguard import LockError, LockInfo, LockInfoDebug, get_by_id_raw, get_by_key_raw, keyed_hash
from syncguard_django.aliases import locks
from syncguard_django.configuration import configuration

if TYPE_CHECKING:
    from syncguard.redis import RedisBackend, ServerReport

T = TypeVar("T")

LISTED_AT_MOST: Final = 10_000
"""How many locks of one alias are read in order to sort or to search them."""


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A live lock of an alias, and what the server's clock made of its times."""

    using: str
    info: LockInfo
    held_ms: int
    remaining_ms: int
    key: str | None = field(default=None, repr=False)
    """The raw key, where ``SHOW_KEYS`` allows it. For the admin, and for those who may see it."""
    former_hashes: tuple[str, ...] = ()
    """The hashes of the key under ``SECRET_KEY_FALLBACKS``."""

    @property
    def short_fence(self) -> str:
        """Without the leading zeros, which are there so that programs can compare text."""
        return self.info.fence.lstrip("0") or "0"

    def has_hash(self, beginning: str) -> bool:
        """Whether the hash of the key, the present or a former one, begins like this."""
        return any(h.startswith(beginning) for h in (self.info.key_hash, *self.former_hashes))


@dataclass(frozen=True, slots=True)
class Holder:
    """A live lock, with the id by which it can be released. Prints without the id."""

    lock: LiveLock
    lock_id: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """An alias that did not answer."""

    using: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.using}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Listing:
    """Live locks, soonest to expire first; how many there are; and who did not answer."""

    locks: list[LiveLock]
    total: int
    failures: tuple[Failure, ...]

    @property
    def is_complete(self) -> bool:
        return len(self.locks) >= self.total


@dataclass(frozen=True, slots=True)
class Health:
    """A server's state, with the numbers of the alias."""

    using: str
    server: ServerReport
    live_locks: int
    fence_counters: int


def page(aliases: Iterable[str], limit: int, offset: int = 0) -> Listing:
    """A page of all live locks. Reads no more than it must: the first of each alias."""
    aliases = tuple(aliases)
    # Of one alias, Redis itself skips what lies before the page.
    start, size = (offset, limit) if len(aliases) == 1 else (0, offset + limit)
    found, total, failures = _ask_all(aliases, lambda using: _live_and_total(using, size, start))
    merged = list(heapq.merge(*found, key=lambda lock: lock.info.expires_at_ms))
    first = offset - start
    return Listing(merged[first : first + limit], total, failures)


def everything(aliases: Iterable[str]) -> Listing:
    """Every live lock, up to ``LISTED_AT_MOST`` of each alias: to be sorted and searched."""
    found, total, failures = _ask_all(
        aliases, lambda using: _live_and_total(using, LISTED_AT_MOST, 0)
    )
    merged = list(heapq.merge(*found, key=lambda lock: lock.info.expires_at_ms))
    return Listing(merged, total, failures)


def lookup(using: str, *, key: str | None = None, lock_id: str | None = None) -> Holder | None:
    """One live lock, by its raw key or lock id. Raises LockError."""
    backend = locks.inspector(using)
    if key is not None:
        found = get_by_key_raw(backend, key)
    else:
        found = get_by_id_raw(backend, lock_id or "")
    return None if found is None else _holder(using, backend, found)


def find(
    using: str, key_hash: str, fence: str, lock_id_hash: str, acquired_at_ms: str
) -> Holder | None:
    """The very holder that somebody saw, if it still holds the lock. Raises LockError.

    The hashes may be those of a former ``SECRET_KEY``: a page may have been open all the while.
    """
    backend, former = locks.inspector(using), _former(using)
    seen = (key_hash, lock_id_hash)

    def is_it(info: LockInfoDebug) -> bool:
        return info.fence == fence and (
            (info.key_hash, info.lock_id_hash) == seen
            or any((hash(info.key), hash(info.lock_id)) == seen for hash in former)
        )

    for found in backend.find_raw(is_it, fence=fence, acquired_at_ms=int(acquired_at_ms)):
        return _holder(using, backend, found)
    return None


def find_by_hash(using: str, beginning: str, at_most: int) -> list[Holder]:
    """The holders whose key's hash, the present or a former one, begins so. Raises LockError."""
    backend, former = locks.inspector(using), _former(using)

    def is_it(info: LockInfoDebug) -> bool:
        return info.key_hash.startswith(beginning) or any(
            hash(info.key).startswith(beginning) for hash in former
        )

    return [_holder(using, backend, info) for info in backend.find_raw(is_it, at_most=at_most)]


def hash_of(using: str, key: str) -> str:
    """The hash of a key as the alias shows it."""
    return locks.inspector(using).hash(key)


def count(using: str) -> int:
    """How many locks of an alias are live. Raises LockError."""
    return locks.inspector(using).count_live_locks()


def health(using: str) -> Health:
    """Ask the server of an alias for its state. Raises LockError."""
    from syncguard.redis import inspect_server

    backend = locks.inspector(using)
    report = inspect_server(backend)
    return Health(using, report, backend.count_live_locks(), backend.count_fence_counters())


def attempt(using: str, ask: Callable[[], T]) -> T | Failure:
    """An answer, or why there is none."""
    try:
        return ask()
    except LockError as error:
        return Failure(using, error.code, str(error))
    except ImproperlyConfigured as error:
        return Failure(using, "ImproperlyConfigured", str(error))


def _ask_all(
    aliases: Iterable[str],
    ask: Callable[[str], tuple[list[LiveLock], int]],
) -> tuple[list[list[LiveLock]], int, tuple[Failure, ...]]:
    found: list[list[LiveLock]] = []
    failures: list[Failure] = []
    total = 0
    for using in aliases:
        answer = attempt(using, partial(ask, using))
        if isinstance(answer, Failure):
            failures.append(answer)
        else:
            found.append(answer[0])
            total += answer[1]
    return found, total, tuple(failures)


def _live_and_total(using: str, limit: int, offset: int) -> tuple[list[LiveLock], int]:
    backend = locks.inspector(using)
    now_ms = _now_ms(backend)
    found = [_dated(using, info, now_ms) for info in backend.live_locks_raw(limit, offset)]
    return found, backend.count_live_locks()


def _holder(using: str, backend: RedisBackend, info: LockInfoDebug) -> Holder:
    return Holder(_dated(using, info, _now_ms(backend)), info.lock_id)


def _now_ms(backend: RedisBackend) -> int:
    """The server's clock, by which locks expire. Ours may differ."""
    from syncguard.redis import server_time_ms

    return server_time_ms(backend)


def _dated(using: str, info: LockInfoDebug, now_ms: int) -> LiveLock:
    return LiveLock(
        using,
        LockInfo(
            info.key_hash,
            info.lock_id_hash,
            info.expires_at_ms,
            info.acquired_at_ms,
            info.fence,
            info.holder,
        ),
        max(0, now_ms - info.acquired_at_ms),
        max(0, info.expires_at_ms - now_ms),
        info.key if configuration().of(using).show_keys else None,
        tuple(hash(info.key) for hash in _former(using)),
    )


def _former(using: str) -> tuple[Callable[[str], str], ...]:
    secrets = configuration().of(using).former_hash_secrets
    return tuple(partial(keyed_hash, secret) for secret in secrets)
