"""Tells that a fence counter went back: the database refuses even the holder of this moment.

A late holder is refused too, so the numbers alone prove nothing: 41 becomes 1 after a loss of data,
and a holder with fence 1 may also be forty holders late. The lock server knows the difference.
Fences only rise, so the lock that is live now has the highest fence that was ever given. If a row
carries a higher one, the counter went back. ADR-057 has the reasons.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from syncguard import LockError, LockInfo, normalize_and_validate_key
from syncguard.current import held_locks
from syncguard_django.configured_backends import locks
from syncguard_django.fencing.fence_values import StaleFence
from syncguard_django.settings import configuration
from syncguard_django.signals import fence_went_back

_logger: Final = logging.getLogger("syncguard")
_REMEMBERED: Final = 4096
LINES_PER_HOUR: Final = 20
"""A server that lost its data refuses every key. One cause needs few lines."""


class _Reports:
    """What was told already, and how many lines were logged in the last hour."""

    def __init__(self) -> None:
        self._told: OrderedDict[object, None] = OrderedDict()
        self._lines: deque[float] = deque(maxlen=LINES_PER_HOUR)
        self._guard = threading.Lock()

    def is_new(self, what: object) -> bool:
        with self._guard:
            return what not in self._told

    def add(self, what: object) -> bool:
        """Whether this is the first report of it."""
        with self._guard:
            if what in self._told:
                return False
            self._told[what] = None
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
            return True

    def take_line(self) -> int:
        """How many lines are left in this hour, with this one; 0: do not log."""
        now = time.monotonic()
        with self._guard:
            while self._lines and self._lines[0] < now - 3600:
                self._lines.popleft()
            left = LINES_PER_HOUR - len(self._lines)
            if left:
                self._lines.append(now)
            return left

    def clear(self) -> None:
        with self._guard:
            self._told.clear()
            self._lines.clear()


reports: Final = _Reports()


def report_key(key: str, seen: str, using: str) -> None:
    """After ``guard`` refused a fence of this key: tell it if the counter of the key went back."""
    _report(seen, [(using, normalize_and_validate_key(key), None)])


def report_row(fence: str, seen: str) -> None:
    """After a row refused a fence: the same for the lock with this fence that this code holds.

    A row does not tell by which key it is protected. Without such a lock nothing can be told.
    """
    _report(
        seen,
        (
            (using, key, fence)
            for key, held in held_locks()
            if held.fence == fence and not held.lost
            for using in configuration().aliases
        ),
    )


def _report(seen: str, candidates: Iterable[tuple[str, str, str | None]]) -> None:
    for using, key, fence in candidates:
        what = (using, hashlib.sha256(key.encode()).digest(), seen)
        if not reports.is_new(what):
            return
        live = _live_lock(using, key)
        if live is None or live.fence >= seen or fence not in (None, live.fence):
            continue
        if reports.add(what):
            _tell(using, live, seen)
        return


def _live_lock(using: str, key: str) -> LockInfo | None:
    try:
        return locks.inspector(using).lookup(key=key)
    except (LockError, ImproperlyConfigured):  # StaleFence is raised all the same
        return None


def _tell(using: str, live: LockInfo, seen: str) -> None:
    left = reports.take_line()
    if left:
        _logger.error(
            "The fence counter of lock %s (alias %r) went back: its holder has fence %s, and the"
            " database has seen %s. The lock server has lost data; new holders are refused until"
            " their fences are higher. Nothing was written. See 'When Redis loses its data' in the"
            " documentation.%s",
            live.key_hash,
            using,
            live.fence,
            seen,
            " Further ones are not logged in this hour." if left == 1 else "",
        )
    try:
        fence_went_back.send_robust(
            StaleFence, using=using, key_hash=live.key_hash, fence=live.fence, seen=seen
        )
    except RuntimeError:
        # Django cannot wait for an async receiver inside a running event loop.
        _logger.error("Could not send the signal fence_went_back to an async receiver.")
