"""The live locks of one or several aliases: what the status command and the admin page show.

Every question costs a bounded number of Redis commands, and none of them walks through the
keyspace. An alias whose Redis fails is reported beside what the others answered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured

from syncguard import LockError, LockInfo
from syncguard_django.aliases import locks

if TYPE_CHECKING:
    from syncguard.redis import RedisBackend, ServerReport

T = TypeVar("T")

LISTED_AT_MOST: Final = 10_000
"""How many locks of one alias are read in order to sort or to search them."""

_SLACK: Final = 1_000
"""How many locks more than there were a moment ago are looked through."""


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A live lock of an alias, and what the server's clock made of its times."""

    using: str
    info: LockInfo
    held_ms: int
    remaining_ms: int


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


def lookup(using: str, *, key: str | None = None, lock_id: str | None = None) -> LiveLock | None:
    """One live lock, by its raw key or lock id; sanitized. Raises LockError."""
    backend = locks.inspector(using)
    info = backend.lookup(key=key, lock_id=lock_id)
    return None if info is None else _dated(using, info, _now_ms(backend))


def find(using: str, key_hash: str, fence: str, lock_id_hash: str) -> LiveLock | None:
    """The lock of the very holder that somebody saw, if it is still held. Raises LockError."""
    seen = (key_hash, fence, lock_id_hash)
    backend = locks.inspector(using)
    for lock in _live(using, backend, backend.count_live_locks() + _SLACK):
        if (lock.info.key_hash, lock.info.fence, lock.info.lock_id_hash) == seen:
            return lock
    return None


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


def _live(using: str, backend: RedisBackend, limit: int, offset: int = 0) -> list[LiveLock]:
    now_ms = _now_ms(backend)
    return [_dated(using, info, now_ms) for info in backend.live_locks(limit, offset)]


def _live_and_total(using: str, limit: int, offset: int) -> tuple[list[LiveLock], int]:
    backend = locks.inspector(using)
    return _live(using, backend, limit, offset), backend.count_live_locks()


def _now_ms(backend: RedisBackend) -> int:
    """The server's clock, by which locks expire. Ours may differ."""
    from syncguard.redis import server_time_ms

    return server_time_ms(backend)


def _dated(using: str, info: LockInfo, now_ms: int) -> LiveLock:
    return LiveLock(
        using, info, max(0, now_ms - info.acquired_at_ms), max(0, info.expires_at_ms - now_ms)
    )
