"""Release locks some time after their block has ended, e.g. when a transaction has ended.

Until then they are extended, even with ``auto_extend=False``, up to ``max_hold_ms``. For adapters;
blocking only. Only this module and ``lock`` may use the private attributes of a ``Lock``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from syncguard._backend.optional import release_many
from syncguard._backend.required import LockBackend
from syncguard._heartbeat import heartbeat
from syncguard._lock.held import Held
from syncguard.current import Block, innermost
from syncguard.errors import LockError, LockLost
from syncguard.lock import Lock
from syncguard.types import ReleaseResult

__all__ = ["LateRelease", "release_later", "release_together"]


class LateRelease:
    """A lock that is still held after its block. Dropping this object stops the extensions."""

    __slots__ = ("_lock", "backend", "held")

    def __init__(self, lock: Lock, held: Held) -> None:
        self._lock = lock
        self.backend: LockBackend = lock._backend
        self.held = held

    @contextmanager
    def enter_again(self) -> Iterator[Held]:
        """A block that holds the same lock with the same fence. Leaving it does not release.

        Raises LockLost on entering if the lock was lost.
        """
        self.held.ensure_held()
        block = Block(self.backend, self._lock._options.key, self.held)
        try:
            innermost.set(block)
            yield self.held
        finally:
            block.leave()

    def __repr__(self) -> str:
        return f"<LateRelease of {self.held!r}>"


def release_later(lock: Lock) -> LateRelease | None:
    """End the block of ``lock`` without releasing it. Call this instead of ``lock.__exit__``.

    None if this block must not release it at all: it entered the lock again with ``reentrant``,
    or a forked parent holds the lock. Then call ``lock.__exit__``.
    """
    held, block, watch, options = lock._held, lock._block, lock._watch, lock._options
    assert held is not None
    assert block is not None
    if block.reentered is not None or held.in_forked_child:
        return None
    later = Lock(lock._backend, options)
    later._free = []
    later._held = held
    if watch is None or not options.auto_extend:
        if watch is not None:  # it watched only for the loss
            heartbeat.unwatch(watch)
        watch = heartbeat.watch(held, lock._backend, options.ttl_ms)
    later._watch = watch
    later._block = block
    lock._watch = None
    lock._reset()  # removes the block from the stack
    return LateRelease(later, held)


def release_together(late: Iterable[LateRelease]) -> list[Held]:
    """Release locks in few round trips. Returns those that were lost before.

    Errors go to ``on_release_error``, as at the end of a block. In a forked child nothing is
    released: the parent holds the locks.
    """
    not_inherited = [one for one in late if not one.held.in_forked_child]
    for one in not_inherited:
        if one._lock._watch is not None:
            heartbeat.unwatch(one._lock._watch)
        one.held.end()
    by_backend: dict[int, list[LateRelease]] = {}
    for one in not_inherited:
        by_backend.setdefault(id(one.backend), []).append(one)
    return [held for group in by_backend.values() for held in _release(group)]


def _release(group: Sequence[LateRelease]) -> list[Held]:
    plain = [one for one in group if one.held.kept is None]
    answers: dict[str, ReleaseResult | LockError] = {}
    if len(plain) > 1:
        ids = [one.held.lock_id for one in plain]
        answers = dict(zip(ids, _released(group[0].backend, ids), strict=True))
    lost = []
    for one in group:
        one._lock._answer = answers.get(one.held.lock_id)
        try:
            one._lock.__exit__(None, None, None)
        except LockLost:
            lost.append(one.held)
    return lost


def _released(backend: LockBackend, ids: Sequence[str]) -> list[ReleaseResult | LockError]:
    try:
        return release_many(backend, ids)
    except BaseException:
        # A time limit or Ctrl-C: retry once before raising, as nothing else releases these locks.
        with contextlib.suppress(LockError):
            release_many(backend, ids)
        raise
