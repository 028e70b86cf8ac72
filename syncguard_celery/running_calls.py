"""The calls of locked functions that hold a lock now, innermost first.

They say which task to interrupt and whether a retry is published. ``syncguard.current`` has all
locks that the running code holds; this module has only those of Celery. They are kept in a context
variable, so every thread, greenlet and asyncio task has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from syncguard import Held, Lock, LockBackend
from syncguard.current import running_code
from syncguard_celery.interrupt_on_loss import Interrupt
from syncguard_celery.message_header import contended_since_ms
from syncguard_celery.options import LockOptions
from syncguard_celery.task_call import Call

Publish = Callable[..., Any]


@dataclass(eq=False, slots=True)
class Holding:
    """One lock that one call holds."""

    call: Call
    options: LockOptions
    backend: LockBackend
    key: str = field(repr=False)
    interrupt: Interrupt = field(repr=False)
    lock: Lock = field(repr=False)
    held: Held
    started: float
    """When the call began, on the monotonic clock."""
    outer: Holding | None = field(repr=False)
    since: float = field(default_factory=time.monotonic)
    retry: tuple[Publish, float] | None = field(default=None, repr=False)
    """The task's own retry, to publish after the lock is handed over; and its delay in ms."""
    was_contended: bool = False
    """Whether the task met contention before it acquired this lock."""
    is_ended: bool = False
    is_retried: bool = False
    """Whether the task's own retry has been published."""
    code: object = field(default_factory=running_code, repr=False)
    """The thread or greenlet that the interrupt would stop."""

    @property
    def is_here(self) -> bool:
        """Whether the running code holds this lock. Not in a copied context on another thread."""
        return not self.is_ended and self.code == running_code()

    def end(self) -> None:
        self.is_ended = True
        self.code = None  # a copied context may keep this object alive, but not the greenlet

    def key_hash(self) -> str:
        return self.backend.hash(self.key)

    @property
    def waited_ms(self) -> float:
        """Time since the task first met contention, which may be in an earlier delivery."""
        return waited_ms(self.call, self.started, self.since)

    @property
    def held_ms(self) -> float:
        return (time.monotonic() - self.since) * 1000


def waited_ms(call: Call, started: float, until: float) -> float:
    """How long a call that began at ``started`` waited. Both are monotonic clock times."""
    since_ms = contended_since_ms(call.request)
    if since_ms is None:
        return (until - started) * 1000
    return max(0.0, (time.time() - (time.monotonic() - until)) * 1000 - since_ms)


_innermost: ContextVar[Holding | None] = ContextVar("innermost", default=None)


def innermost() -> Holding | None:
    return _innermost.get()


def enclosing() -> Iterator[Holding]:
    """All locks that this call stack holds, innermost first."""
    holding = _innermost.get()
    while holding is not None:
        if holding.is_here:
            yield holding
        holding = holding.outer


def put_innermost(holding: Holding | None) -> None:
    _innermost.set(holding)
