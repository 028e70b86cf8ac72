"""Connections that nobody uses now. A thread closes those that stay unused.

Shared by the blocking and the asyncio runner. No lock: a fork could copy it while it is locked, and
the operations of a deque need none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Final

from syncguard._lock.background_threads import run_in_thread
from syncguard.postgres._transport.connection import Connection

IDLE_S: Final = 30.0
"""How long an unused connection stays open."""


class IdleConnections:
    """The connections of one backend, the last used first."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._kept: deque[tuple[Connection, float]] = deque()
        self._closing_in: int | None = None
        """The process in which a thread closes unused connections."""
        self._wake = threading.Event()

    def take(self) -> Connection | None:
        """A connection that can be used, or None."""
        while True:
            try:
                connection, _ = self._kept.pop()
            except IndexError:
                return None
            if connection.is_usable:
                return connection
            connection.close()

    def keep(self, connection: Connection) -> None:
        if not connection.is_usable:
            connection.close()
            return
        self._kept.append((connection, time.monotonic()))
        # Another process: a forked child has no thread of its parent.
        if self._closing_in != os.getpid():
            self._wake = threading.Event()
            self._closing_in = os.getpid()
            try:
                run_in_thread(self._close_unused)
            except RuntimeError:  # no thread available: keep it open
                self._closing_in = None

    def close(self) -> None:
        while True:
            try:
                connection, _ = self._kept.popleft()
            except IndexError:
                break
            connection.close()
        self._wake.set()

    def __len__(self) -> int:
        return len(self._kept)

    def _close_unused(self) -> None:
        wake = self._wake
        while True:
            try:
                connection, since = self._kept.popleft()  # the longest unused
            except IndexError:
                self._closing_in = None
                if self._kept:  # kept in between, by a caller that relied on this thread
                    continue
                return
            left = since + self._idle_s - time.monotonic()
            if left <= 0:
                connection.close()
                continue
            self._kept.appendleft((connection, since))
            if wake.wait(left):
                self._closing_in = None
                return
