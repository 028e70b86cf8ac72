"""Entering and leaving a block: the state that ``Lock`` and ``AsyncLock`` share. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from syncguard._lock.held import Held
from syncguard._lock.options import Options
from syncguard.current import Block, innermost
from syncguard.errors import ErrorContext, LockLost
from syncguard.types import ReleaseResult

BackendT = TypeVar("BackendT")
GrantT = TypeVar("GrantT")
WatchT = TypeVar("WatchT")


class OneBlock(Generic[BackendT, GrantT, WatchT]):
    """The block of a lock: one at a time."""

    def __init__(
        self,
        backend: BackendT,
        options: Options,
        acquired: GrantT | None = None,
        *,
        function: Callable[..., object] | None = None,
    ) -> None:
        self._backend = backend
        self._options = options
        self._acquired = acquired
        self._function = function
        self._free: list[None] = [None]
        self._held: Held | None = None
        self._block: Block | None = None
        self._watch: WatchT | None = None
        """The heartbeat's entry for this lock."""

    def __repr__(self) -> str:
        return f"<lock on {self._backend!r}>"

    def __del__(self) -> None:
        # If an interrupt stopped __exit__ at its first line, only this runs: remove the block
        # from the stack of held locks.
        block = getattr(self, "_block", None)
        if block is not None:
            block.leave()

    def _enter(self, held: Held, around: Block | None = None) -> None:
        self._watch = None
        self._held = held
        # Stored before it is pushed: after an interrupt at any point, ``_reset`` can remove it.
        self._block = Block(self._backend, self._options.key, held, around)
        innermost.set(self._block)

    def _enter_again(self) -> Held | None:
        """Enter a lock that this code holds already. None: this code does not hold it."""
        if innermost.get() is None:
            return None
        around = self._options.block_around(self._backend)
        if around is None:
            return None
        self._enter(around.held, around)
        return around.held

    def _reset(self) -> None:
        """After a block ended or failed to begin: allow the next one."""
        if self._block is not None:
            self._block.leave()
        self._held, self._block, self._free = None, None, [None]


def must_release(held: Held, block: Block) -> bool:
    """False if an outer block or a parent process has to release the lock."""
    return block.reentered is None and not held.in_forked_child


def was_lost(held: Held, released: ReleaseResult | None) -> bool:
    """Whether the lock was lost before its block ended. ``released`` is None if that failed.

    If the release found the lock, nobody else has held it meanwhile: not lost. If the server gave
    no clear answer, the holder's clock at the end of the block decides. So it does if the release
    did not find the lock and the answer came after the deadline: then the lock may have expired
    while the release was on its way.
    """
    if held.known_lost:
        return True
    if released is None or released.assumed:
        return bool(held.ended_late)
    return not released.ok and (bool(held.ended_late) or not held.past_deadline)


def lock_lost(key: str, held: Held) -> LockLost:
    return LockLost(
        "the lock was lost before its block ended: the work in it was not protected to the end",
        ErrorContext(key=key, lock_id=held.lock_id),
    )
