"""Operations of several round trips, as generators that yield calls and are sent their results.

Without I/O, so that the blocking and the asyncio backend share them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from syncguard.errors import invalid_argument
from syncguard.redis.calls import PAGE, Call, Calls
from syncguard.redis.names import Space
from syncguard.types import LockInfoDebug

_BEYOND_ANY_LIST: Final = 10**12
"""No list is that long; and Lua, which counts in floating point, still counts that far."""

_DONE: Final = "0"
"""The cursor that begins a walk, and that ends it."""

T = TypeVar("T")
Steps = Generator[Call[Any], Any, T]


def live_locks(calls: Calls, limit: int, offset: int) -> Steps[list[LockInfoDebug]]:
    """A page of the live locks, soonest to expire first."""
    _check_whole(limit, "limit")
    _check_whole(offset, "offset")
    offset = min(offset, _BEYOND_ANY_LIST)
    spaces = calls.names.spaces()
    if len(spaces) == 1:
        return (yield from _slice(calls, spaces[0], limit, offset))
    # A cluster keeps one list a bucket: the page lies within the first offset + limit of each.
    merged: list[LockInfoDebug] = []
    for space in spaces:
        merged += yield from _slice(calls, space, offset + limit, 0)
    merged.sort(key=lambda info: info.expires_at_ms)
    return merged[offset : offset + limit]


def counts(calls: Calls) -> Steps[tuple[int, int]]:
    """How many live locks, and how many fence counters."""
    live = fences = 0
    for space in calls.names.spaces():
        some_live, some_fences = yield calls.counts(space)
        live += some_live
        fences += some_fences
    return live, fences


def find(
    calls: Calls,
    is_wanted: Callable[[LockInfoDebug], bool],
    at_most: int,
    *,
    fence: str = "",
    acquired_at_ms: int | None = None,
) -> Steps[list[LockInfoDebug]]:
    """The live locks that are wanted, up to so many.

    A walk, not pages: while locks come, go and are extended, pages shift, and one can be missed.
    It takes a step for each thousand locks. With the fence and the time of the acquisition, only
    locks that have both leave the server: with 100,000 locks, that is the work.
    """
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
    """The very holder that an administrator saw; empty if it is gone.

    All three must agree: the display hash alone is no identity.
    """
    for value, name in ((key_hash, "key_hash"), (fence, "fence"), (lock_id_hash, "lock_id_hash")):
        if not isinstance(value, str) or not value:
            raise invalid_argument(f"{name} must be a non-empty str")
    seen = (key_hash, fence, lock_id_hash)
    return find(
        calls, lambda info: (info.key_hash, info.fence, info.lock_id_hash) == seen, 1, fence=fence
    )


def _slice(calls: Calls, space: Space, limit: int, offset: int) -> Steps[list[LockInfoDebug]]:
    found: list[LockInfoDebug] = []
    for start in range(offset, offset + limit, PAGE):
        size = min(PAGE, offset + limit - start)
        page: list[LockInfoDebug] = yield calls.live_locks(space, start, size)
        found += page
        if not page:
            break
    return found


def _check_whole(value: int, name: str) -> None:
    if type(value) is not int or value < 0:
        raise invalid_argument(f"{name} must be a whole number, zero or more")
