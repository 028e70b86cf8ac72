"""What a fault is: something that goes wrong in a run.

``strike`` makes it happen once, and returns when the store can work again. How long and how hard
is drawn from the random numbers that the plan of the run gives. A fault that loses data is judged
too, but what it breaks is a documented limit (see ``docs/explanation/safety.md``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import ClassVar, Generic, Protocol, TypeVar

from history.stores import Store

StoreT = TypeVar("StoreT", bound=Store)


class Workers(Protocol):
    """The worker processes, as faults see them."""

    def send_signal(self, number: int, random: Random) -> int:
        """Send a signal to one of them, and return its pid."""
        ...

    def continue_one(self, pid: int) -> None: ...

    def replace_one(self, random: Random) -> None:
        """kill -9 for one of them, and start another."""
        ...


class Fault(ABC, Generic[StoreT]):
    """A kind of fault, and the store that it needs."""

    name: ClassVar[str]
    keeps_data: ClassVar[bool] = True
    forks: ClassVar[bool] = False
    """Whether workers fork while they hold locks."""
    strikes: ClassVar[int] = 4
    """How often it happens in a run."""
    min_seconds: ClassVar[float] = 0.0
    """Shorter runs would end before the fault is over."""
    explained_errors: ClassVar[tuple[str, ...]] = ()
    """Codes of errors that only this fault explains: see ``checker.UNEXPECTED``."""
    make_store: Callable[[], StoreT]

    @abstractmethod
    def strike(self, store: StoreT, workers: Workers, random: Random, ttl_ms: int) -> None: ...
