"""The waiters of one process that share one connection: which of them gets a wake-up. No I/O.

Each wake-up list belongs to one lock. The waiters are in the order in which they began to wait.
No threading lock is used: a signal handler may need one that its thread holds, and a fork could
copy it while it is locked. Every change is one operation of a dict, which no thread can interrupt.
"""

from __future__ import annotations

import os
from typing import Final, Generic, Protocol, TypeVar

from syncguard.redis.script_calls import Call

MAX_LISTS: Final = 256
"""The most lists of one BLPOP. Redis needs time for each, and serves nobody else meanwhile.

Waiters for more locks than that sleep between their attempts, until one of the others has left.
"""

MAX_CLUSTER_LISTENERS: Final = 8
"""On a cluster each bucket needs a connection. Waiters for more buckets sleep."""


class WakeList(str):
    """The name of a lock's wake-up list, with the call that passes its wake-up on."""

    pass_on: Call[bool]

    @classmethod
    def of(cls, name: str, pass_on: Call[bool]) -> WakeList:
        wake_list = cls(name)
        wake_list.pass_on = pass_on
        return wake_list

    def __repr__(self) -> str:
        return "<WakeList>"  # the name contains the key


class LocalWaiter(Protocol):
    """What decides about a wake-up."""

    wake_list: WakeList
    waits_now: bool
    """False while it tries to acquire the lock: then another one can use a wake-up sooner."""

    def wake(self) -> None: ...


W = TypeVar("W", bound=LocalWaiter)


class LocalWaiters(Generic[W]):
    """The waiters that no wake-up has reached yet."""

    def __init__(self) -> None:
        self._lists: dict[W, WakeList] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def add(self, waiter: W) -> None:
        """Add a waiter at the end. One that is there already keeps its place."""
        self._lists[waiter] = waiter.wake_list

    def remove(self, waiter: W) -> bool:
        """Whether the waiter was still there. If not, it has got a wake-up, or never waited."""
        return self._lists.pop(waiter, None) is not None

    def lists(self) -> dict[str, WakeList]:
        """The lists to listen on, by name: those of the waiters that began first."""
        names: dict[str, WakeList] = {}
        for wake_list in self._lists.copy().values():
            names.setdefault(wake_list, wake_list)
            if len(names) == MAX_LISTS:
                break
        return names

    def is_covered(self, lists: dict[str, WakeList]) -> bool:
        """Whether a BLPOP on these lists serves every waiter that can be served."""
        return len(lists) >= MAX_LISTS or all(name in lists for name in self._lists.copy().values())

    def wake_longest(self, wake_list: WakeList) -> bool:
        """Wake one waiter for this lock. False: this process has none."""
        waiters = [waiter for waiter, known in self._lists.copy().items() if known == wake_list]
        waiters.sort(key=lambda waiter: not waiter.waits_now)  # stable: else the longest first
        for waiter in waiters:
            if self.remove(waiter):  # it may have left meanwhile
                waiter.wake()
                return True
        return False

    def first_that_waits(self) -> W | None:
        return next((waiter for waiter in self._lists.copy() if waiter.waits_now), None)


class ClusterLimit:
    """Counts the connections on which this process listens to a cluster."""

    def __init__(self) -> None:
        self._listeners: set[object] = set()
        self._pid = os.getpid()

    def admit(self, listener: object) -> bool:
        if self._pid != os.getpid():
            self._pid, self._listeners = os.getpid(), set()  # a forked child listens to nothing
        if listener not in self._listeners and len(self._listeners) >= MAX_CLUSTER_LISTENERS:
            return False
        self._listeners.add(listener)
        return True

    def leave(self, listener: object) -> None:
        self._listeners.discard(listener)


CLUSTER_LIMIT: Final = ClusterLimit()
