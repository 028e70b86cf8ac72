"""The lock ids of this process whose acquire or adopt got no reply, until they are undone.

The server may have granted the lock, or may still grant it, but no code holds it. So every acquire
of the same lock in this process sends these ids, and replaces a lock that has one of them: a caller
that tries again is not refused by its own lost request. No I/O here.
"""

from __future__ import annotations

from typing import Final

_lock_names: Final[dict[str, str]] = {}
"""From a spent id to the storage key of its lock; empty if that is not known. Changed only by
single operations on the dict, which need no lock: a fork could copy a lock while it is held."""


def add(lock_id: str, lock_name: str) -> None:
    _lock_names[lock_id] = lock_name


def discard(lock_id: str) -> None:
    _lock_names.pop(lock_id, None)


def clear() -> None:
    _lock_names.clear()


def of_lock(lock_name: str) -> str:
    """The spent ids of a lock, as acquire.lua takes them: ",id,id,"; empty if there are none."""
    if not _lock_names:
        return ""
    # A copy: until Python 3.11, list(items()) may run the collector, and so code that adds an id.
    ids = [lock_id for lock_id, name in _lock_names.copy().items() if name == lock_name]
    return f",{','.join(ids)}," if ids else ""
