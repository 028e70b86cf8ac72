"""The locks this code holds: one stack in a context variable, innermost first.

``lock()``, ``aio.lock`` and ``hold()`` push a lock when their block begins and remove it when the
block ends. ``syncguard`` exports ``current_lock`` and ``current_fence``; the rest is for adapters.
No I/O.

A copied context (an asyncio child task, a thread started with ``copy_context()``) sees the locks
of the code that started it, as long as they are held. But only the same asyncio task, greenlet
or thread counts as the *same code* and may enter its lock again: two tasks must exclude each other.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import _get_running_loop
from collections.abc import Iterator
from contextvars import ContextVar
from sys import modules as _modules
from threading import get_ident
from typing import Final

from syncguard._lock.held import Held, call_on_lost
from syncguard.types import Fence

__all__ = [
    "call_on_lost",
    "current_fence",
    "current_lock",
    "held_here",
    "held_locks",
    "running_code",
]


class Block:
    """One block of one lock, from the moment it is entered until it is left."""

    __slots__ = ("_outer", "_owner", "backend", "held", "is_left", "key", "reentered")

    # Created for every lock: for speed, this and ``leave`` call few functions.
    def __init__(
        self, backend: object, key: str, held: Held, reentered: Block | None = None
    ) -> None:
        self.backend = backend
        self.key = key
        self.held = held
        self.is_left = False
        self.reentered = reentered
        """The outer block, if this block entered its lock again. Only the outer block releases."""
        is_plain = _get_running_loop() is None and "greenlet" not in _modules
        self._owner: object = get_ident() if is_plain else running_code()
        outer = innermost.get()
        self._outer = outer if outer is None or not outer.is_left else outer.outer

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock: it is not released, and not a forked parent's."""
        if self.is_left or self.held.ended_late is not None or self.held.in_forked_child:
            return False
        return self.reentered is None or self.reentered.is_held

    @property
    def outer(self) -> Block | None:
        """The nearest block around this one that has not ended. Blocks may end in any order."""
        outer = self._outer
        while outer is not None and outer.is_left:
            outer = outer._outer
        return outer

    def is_on(self, backend: object, key: str) -> bool:
        """Whether the running code entered this block with that key on that backend."""
        return (
            self.key == key
            and _unwrapped(self.backend) is _unwrapped(backend)
            and self._owner == running_code()
        )

    def leave(self) -> None:
        """Remove the block from the stack. May be called again, and from another context."""
        self.is_left = True
        if innermost.get() is self:
            outer = self._outer
            innermost.set(outer if outer is None or not outer.is_left else outer.outer)
        self._owner = None  # a copied context may keep this block alive, but not the task


innermost: Final[ContextVar[Block | None]] = ContextVar("syncguard_innermost_block", default=None)
"""The top of the stack. This block may have ended already."""


def block_here(backend: object, key: str) -> Block | None:
    """The block in which the running code holds this normalized key on this backend."""
    block = innermost.get()
    while block is not None:
        if block.is_held and block.is_on(backend, key):
            return block
        block = block.outer
    return None


def held_here(backend: object, key: str) -> Held | None:
    """The lock on this normalized key, if this same task, greenlet or thread holds it already."""
    block = block_here(backend, key)
    return None if block is None else block.held


def held_locks() -> Iterator[tuple[str, Held]]:
    """The key and the lock of every block around this code, innermost first."""
    block = innermost.get()
    while block is not None:
        if block.is_held:
            yield block.key, block.held
        block = block.outer


def current_lock() -> Held | None:
    """The innermost lock around the calling code, or None.

    Also in an asyncio task or a thread that inherited the context, while the lock is held.
    """
    for _, held in held_locks():
        return held
    return None


def current_fence() -> Fence | None:
    """The fence of ``current_lock()``: pass it to the resource that the lock protects."""
    held = current_lock()
    return None if held is None else held.fence


def running_code() -> object:
    """What runs now: the asyncio task, else the greenlet, else the thread."""
    loop = _get_running_loop()
    if loop is not None and (task := asyncio.current_task(loop)) is not None:
        return task
    greenlets = _modules.get("greenlet")
    if greenlets is not None and (greenlet := greenlets.getcurrent()).parent is not None:
        return greenlet
    return get_ident()  # the thread's own greenlet has no parent


def _unwrapped(backend: object) -> object:
    """The backend itself, without the wrappers of ``with_telemetry``."""
    return inspect.unwrap(backend) if hasattr(backend, "__wrapped__") else backend  # type: ignore[arg-type]
