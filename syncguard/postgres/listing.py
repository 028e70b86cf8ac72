"""Operations of several round trips, as generators that yield calls and receive their results.

They do no I/O, so the blocking and the asyncio backend share them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from syncguard._backend.listing_and_health import LockPage, Wanted
from syncguard.errors import invalid_argument
from syncguard.keys import validate_count
from syncguard.postgres.statement_calls import Call, Calls
from syncguard.types import LockInfoDebug

T = TypeVar("T")
CallSteps = Generator[Call[Any], Any, T]


def page(calls: Calls, limit: int, offset: int) -> Call[LockPage]:
    """One page of the live locks, soonest to expire first."""
    validate_count("limit", limit)
    validate_count("offset", offset)
    return calls.live_locks(limit, offset)


def find(
    calls: Calls,
    is_wanted: Wanted,
    at_most: int,
    *,
    fence: str = "",
    acquired_at_ms: int | None = None,
) -> CallSteps[list[LockInfoDebug]]:
    """Find up to ``at_most`` live locks for which ``is_wanted`` returns True.

    Walks in the order of the keys, which do not change: a lock that is held during the whole
    search is found, also while others are acquired, extended and released.
    """
    found: list[LockInfoDebug] = []
    after: str | None = ""
    while after is not None and len(found) < at_most:
        after, infos = yield calls.find(after, fence, acquired_at_ms)
        found += [info for info in infos if is_wanted(info)]
    return found[:at_most]


def holder(
    calls: Calls, key_hash: str, fence: str, lock_id_hash: str
) -> CallSteps[list[LockInfoDebug]]:
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
