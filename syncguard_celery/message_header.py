"""What a message carries for us, in one header: its shape, and how it is read.

::

    syncguard: {"fences": {sha256 of a key: fence, ...},   of the locks it was published under
                "after": {sha256 of a key: fence, ...},    of the run that this one repeats
                "lock": lock id,                           of the publish-time lock, redeemable once
                "since": ms, "attempts": n,                of the contention it has met so far
                "place": ms,                               in the queue of its key
                "earlier": {sha256 of a key: ms, ...},     it may be a copy; when the lock of its
                                                           earlier delivery would have expired
                "ended": ms,                               since when that lock is released
                "unavailable": ms, "tries": n}             since when the lock's server is down

Never a raw key. The lock id is in no other place, and is taken out when the task starts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from syncguard import normalize_and_validate_key
from syncguard.backend import Secret

if TYPE_CHECKING:
    from celery.app.task import Context

HEADER: Final = "syncguard"

MAX_FENCES: Final = 64
"""The oldest are dropped beyond this: a header must not grow for ever along an endless chain."""

Fences = dict[str, str]


def key_digest(key: str) -> str:
    """SHA-256 of a key: an identity, unlike the short hash that is displayed."""
    return hashlib.sha256(normalize_and_validate_key(key).encode()).hexdigest()


def merged(*layers: Fences) -> Fences:
    """Fences of several origins; later ones win, and are the youngest."""
    fences: Fences = {}
    for layer in layers:
        for digest, fence in layer.items():
            fences.pop(digest, None)
            fences[digest] = fence
    return dict(list(fences.items())[-MAX_FENCES:])


def header_of(request: Context | None) -> dict[str, Any]:
    """What came with this request; empty if nothing did.

    A message's headers become attributes of the request. ``request.headers`` is not to be relied
    on: integrations put a dictionary of their own there, and an eager run has nothing else.
    """
    if request is None:
        return {}
    return header_in(request.__dict__ if HEADER in request.__dict__ else request.headers)


def header_in(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is in a message's headers; empty if nothing is."""
    header = (headers or {}).get(HEADER)
    return header if isinstance(header, dict) else {}


def contended_since_ms(request: Context | None) -> int | None:
    """When this task first met contention, in an earlier delivery; None if it did not."""
    since = header_of(request).get("since")
    return since if isinstance(since, int) else None


def unavailable_since_ms(request: Context | None) -> int | None:
    """When this task first could not reach the lock's server; None if it could."""
    since = header_of(request).get("unavailable")
    return since if isinstance(since, int) else None


def earlier_delivery(request: Context | None) -> dict[str, int] | None:
    """By key: until when the lock of an earlier delivery was seen to last; None if this is the
    only message of its task, as far as we know."""
    earlier = header_of(request).get("earlier")
    return earlier if isinstance(earlier, dict) else None


def fences_in(header: dict[str, Any], name: str) -> Fences:
    fences = header.get(name)
    return fences if isinstance(fences, dict) else {}


def seal_lock(header: dict[str, Any]) -> None:
    """Hide the lock id from whoever prints the request."""
    if "lock" in header:
        header["lock"] = Secret(header["lock"])


def take_lock(request: Context | None) -> str | None:
    """The lock id that came with this request. It is taken out: nobody else finds it there."""
    header = header_of(request)
    lock_id = header.pop("lock", None)
    return None if lock_id is None else str.__str__(lock_id)


def put_back(request: Context | None, lock_id: str) -> None:
    """It could not be redeemed: whoever comes next may find it there."""
    header_of(request)["lock"] = Secret(lock_id)
