"""Our header in a task message: its fields, and functions that read it.

::

    syncguard: {"fences": {sha256 of a key: fence, ...},   of the locks it was published under
                "after": {sha256 of a key: fence, ...},    of the run that this one repeats
                "lock": lock id,                           of the publish-time lock, used once
                "since": ms, "attempts": n,                of the contention it has met so far
                "place": ms,                               in the queue of its key
                "earlier": {sha256 of a key: ms, ...},     it may be a copy; when the lock of its
                                                           earlier delivery would have expired
                "ended": ms,                               since when that lock is released
                "unavailable": ms, "tries": n}             since when the lock's server is down

It never contains a raw key. The lock id is in no other place; it is removed when the task starts.
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
"""More than this, and the oldest are dropped: a header must not grow along an endless chain."""

Fences = dict[str, str]


def key_digest(key: str) -> str:
    """SHA-256 of a key. It identifies the key; the short hash is only for display."""
    return hashlib.sha256(normalize_and_validate_key(key).encode()).hexdigest()


def merged(*layers: Fences) -> Fences:
    """Fences of several layers. A later layer overrides an earlier one."""
    fences: Fences = {}
    for layer in layers:
        for digest, fence in layer.items():
            fences.pop(digest, None)
            fences[digest] = fence
    return dict(list(fences.items())[-MAX_FENCES:])


def header_of(request: Context | None) -> dict[str, Any]:
    """Our header of this request; empty if there is none.

    A message's headers become attributes of the request. ``request.headers`` is only the second
    choice: integrations replace it with their own dictionary. An eager run has nothing else.
    """
    if request is None:
        return {}
    return header_in(request.__dict__ if HEADER in request.__dict__ else request.headers)


def header_in(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Our header among a message's headers; empty if there is none."""
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
    """By key: the last known expiry of an earlier delivery's lock. None if no other message of
    this task is known."""
    earlier = header_of(request).get("earlier")
    return earlier if isinstance(earlier, dict) else None


def fences_in(header: dict[str, Any], name: str) -> Fences:
    fences = header.get(name)
    return fences if isinstance(fences, dict) else {}


def hide_lock_id(header: dict[str, Any]) -> None:
    """Hide the lock id from code that prints the request."""
    if "lock" in header:
        header["lock"] = Secret(header["lock"])


def take_lock(request: Context | None) -> str | None:
    """Remove the lock id from this request's header, and return it."""
    header = header_of(request)
    lock_id = header.pop("lock", None)
    return None if lock_id is None else str.__str__(lock_id)


def put_back(request: Context | None, lock_id: str) -> None:
    """The lock could not be adopted: put its id back for a retry or for the cleanup."""
    header_of(request)["lock"] = Secret(lock_id)
