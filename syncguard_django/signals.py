"""Django signals for what happens to locks. Sent only for aliases with ``TELEMETRY: True``, except
``fence_went_back``, which is always sent.

Receivers get ``using`` (the alias) and ``event`` (a ``syncguard.LockEvent``, with hashes instead of
the key and the lock id); the sender is ``LockEvent``. Signals are sent with ``send_robust``: Django
logs the error of a receiver, and the lock is not affected. In asyncio they are sent in the
background, so that a slow receiver does not block the event loop.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from django.dispatch import Signal

from syncguard import LockEvent

lock_acquired: Final = Signal()
lock_contended: Final = Signal()
lock_released: Final = Signal()
lock_extended: Final = Signal()
lock_lost: Final = Signal()
fence_went_back: Final = Signal()
"""A row carries a higher fence than the lock that is held now: the lock server has lost data.

With ``using``, ``key_hash``, ``fence`` and ``seen``, once for each key and fence of a row. The
transaction of the refused write is still open, and will be rolled back.
"""

_ON_SUCCESS: Final = {
    "acquire": lock_acquired,
    "release": lock_released,
    "extend": lock_extended,
}

_logger: Final = logging.getLogger("syncguard")
_RECENT_LIMIT: Final = 4096
_guard: Final = threading.Lock()


class _RecentHashes:
    """The hashes of the most recent lock ids, up to a limit."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[str | None, None] = OrderedDict()

    def __contains__(self, lock_id_hash: str | None) -> bool:
        return lock_id_hash in self._hashes

    def add(self, lock_id_hash: str | None) -> None:
        self._hashes[lock_id_hash] = None
        if len(self._hashes) > _RECENT_LIMIT:
            self._hashes.popitem(last=False)


_released: Final = _RecentHashes()
_reported_lost: Final = _RecentHashes()


def signal_of(event: LockEvent) -> Signal | None:
    """The signal for an event. None for lookups, and for errors that do not concern one lock."""
    if event.result == "ok":
        if event.type == "release":
            with _guard:
                _released.add(event.lock_id_hash)
        return _ON_SUCCESS.get(event.type)
    if event.type == "acquire":
        return lock_contended if event.reason == "locked" else None
    if event.type in ("extend", "release") and event.reason and _is_first_report(event):
        return lock_lost
    return None


def sender_of_events(using: str) -> Callable[[LockEvent], None]:
    """The telemetry callback of a blocking backend."""

    def send(event: LockEvent) -> None:
        signal = signal_of(event)
        if signal is None:
            return
        try:
            signal.send_robust(LockEvent, using=using, event=event)
        except RuntimeError:
            # Django cannot wait for an async receiver inside a running event loop.
            _logger.error("Could not send a lock signal: use alock() inside an event loop.")

    return send


def async_sender_of_events(using: str) -> Callable[[LockEvent], Coroutine[Any, Any, object] | None]:
    """The telemetry callback of an asyncio backend. The coroutine it returns runs in background."""

    def send(event: LockEvent) -> Coroutine[Any, Any, object] | None:
        signal = signal_of(event)
        return None if signal is None else signal.asend_robust(LockEvent, using=using, event=event)

    return send


def loss_of(lock_id_hash: str) -> LockEvent:
    """The event for a lost lock, for a loss that the server did not necessarily report."""
    return LockEvent("extend", "fail", lock_id_hash=lock_id_hash, reason="expired")


def _is_first_report(event: LockEvent) -> bool:
    """Whether this is the first report of a loss.

    The heartbeat, the holder's clock and the release can all notice the same loss. Releasing a lock
    twice is not a loss.
    """
    lock_id_hash = event.lock_id_hash
    with _guard:
        if event.type == "release" and lock_id_hash in _released:
            return False
        if lock_id_hash in _reported_lost:
            return False
        _reported_lost.add(lock_id_hash)
        return True
