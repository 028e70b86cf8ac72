"""Operations of several round trips, as generators that yield calls and receive their results.

They do no I/O, so the blocking and the asyncio backend share them.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain
from typing import Any, Final, TypeVar

from syncguard._backend.listing_and_health import LockPage, Wanted
from syncguard.errors import invalid_argument
from syncguard.keys import validate_count, validate_ms
from syncguard.redis.names import Space
from syncguard.redis.script_calls import PAGE, Call, Calls
from syncguard.types import LockInfoDebug

_MAX_OFFSET: Final = 10**12
"""Longer than any list, and still exact in Lua's floating point numbers."""

_DONE: Final = "0"
"""The cursor value that starts a walk and also ends it."""

T = TypeVar("T")
Steps = Generator[Call[Any], Any, T]


def page(calls: Calls, limit: int, offset: int) -> Steps[LockPage]:
    """Return one page of the live locks, soonest to expire first: one call per thousand locks."""
    validate_count("limit", limit)
    validate_count("offset", offset)
    offset = min(offset, _MAX_OFFSET)
    spaces = calls.names.spaces()
    if len(spaces) == 1:
        return (yield from _slice(calls, spaces[0], limit, offset))
    # A cluster has one list per bucket: the page is within the first offset + limit of each.
    slices = []
    for space in spaces:
        slices.append((yield from _slice(calls, space, offset + limit if limit else 0, 0)))
    merged = sorted(chain(*(each.locks for each in slices)), key=lambda info: info.expires_at_ms)
    total, now_ms = sum(each.total for each in slices), max(each.now_ms for each in slices)
    return LockPage(merged[offset : offset + limit], total, now_ms)


def counts(calls: Calls) -> Steps[tuple[int, int]]:
    """Count the live locks and the fence counters."""
    live = fences = 0
    for space in calls.names.spaces():
        some_live, some_fences = yield calls.counts(space)
        live += some_live
        fences += some_fences
    return live, fences


def find(
    calls: Calls,
    is_wanted: Wanted,
    at_most: int,
    *,
    fence: str = "",
    acquired_at_ms: int | None = None,
) -> Steps[list[LockInfoDebug]]:
    """Find up to ``at_most`` live locks for which ``is_wanted`` returns True.

    Uses ZSCAN instead of pages: while locks are acquired, extended and released, pages shift, and
    a lock can be missed. Makes one call per thousand locks. With ``fence`` and
    ``acquired_at_ms``, the server returns only locks that match both; with 100,000 locks, most of
    the cost is the transfer.
    """
    if not callable(is_wanted):
        raise invalid_argument("is_wanted must be a function of a LockInfoDebug")
    validate_count("at_most", at_most)
    if not isinstance(fence, str) or not fence.isascii():
        raise invalid_argument("fence must be a str of digits")
    if acquired_at_ms is not None:
        validate_ms("acquired_at_ms", acquired_at_ms)
    texts = [f'"{fence}"'] if fence else []
    texts += [] if acquired_at_ms is None else [str(acquired_at_ms)]
    found: dict[str, LockInfoDebug] = {}
    for space in calls.names.spaces():
        cursor = ""
        while cursor != _DONE and len(found) < at_most:
            cursor, infos = yield calls.walk(space, cursor or _DONE, texts)
            found |= {info.lock_id: info for info in infos if is_wanted(info)}
    return list(found.values())[:at_most]


def holder(
    calls: Calls, key_hash: str, fence: str, lock_id_hash: str
) -> Steps[list[LockInfoDebug]]:
    """Find the exact holder that an administrator saw; the list is empty if it is gone.

    All three values must match: two keys can have the same display hash.
    """
    for value, name in ((key_hash, "key_hash"), (fence, "fence"), (lock_id_hash, "lock_id_hash")):
        if not isinstance(value, str) or not value:
            raise invalid_argument(f"{name} must be a non-empty str")
    seen = (key_hash, fence, lock_id_hash)
    return find(
        calls, lambda info: (info.key_hash, info.fence, info.lock_id_hash) == seen, 1, fence=fence
    )


def _slice(calls: Calls, space: Space, limit: int, offset: int) -> Steps[LockPage]:
    first: LockPage = yield calls.live_locks(space, offset, min(PAGE, limit))
    found = list(first.locks)
    for start in range(offset + PAGE, min(offset + limit, first.total), PAGE):
        part: LockPage = yield calls.live_locks(space, start, min(PAGE, offset + limit - start))
        found += part.locks
    return LockPage(found, first.total, first.now_ms)
