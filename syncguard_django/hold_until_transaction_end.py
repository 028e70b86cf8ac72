"""Locks whose block ended inside an open transaction: held, and extended, until it has ended.

A lock waits for every transaction that was open in its thread when its block ended, in any
database: each of them may contain writes that only the lock protects. If the same thread acquires
the lock again before that, it enters the same lock again, with the same fence. A forked child
releases nothing and enters nothing again: the locks belong to the parent.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from django.http import StreamingHttpResponse

from syncguard import Held, Lock, LockError, normalize_and_validate_key
from syncguard.current import held_here
from syncguard.deferred_release import LateRelease, release_later, release_together
from syncguard_django.event_loop_check import refuse_in_event_loop
from syncguard_django.lock_order_warning import AFTER_A_QUERY, MANY, warn_at_call_site
from syncguard_django.open_transactions import Connection, has_run_a_query, open_transactions
from syncguard_django.settings import Until
from syncguard_django.transaction_end import TransactionEnd, end_of_transaction

P = ParamSpec("P")
R = TypeVar("R")

_MANY_LOCKS: Final = 1_000
_STREAMING_REFUSED: Final = (
    "the body of a streaming response is produced after the lock is released: return a complete"
    " response, or use lock() inside the generator that produces the body"
)
_logger: Final = logging.getLogger("syncguard")

_Slot = tuple[int, str]
"""The identity of the backend, and the key."""


class _ThreadLocks(threading.local):
    def __init__(self) -> None:
        self.locks: dict[_Slot, DeferredLock] = {}


_of_this_thread: Final = _ThreadLocks()


class DeferredLock:
    """One lock whose block has ended, and the transactions that it waits for."""

    def __init__(
        self, late: LateRelease, slot: _Slot, on_loss: Callable[[Held], object] | None
    ) -> None:
        self.late = late
        self.on_loss = on_loss
        self._slot = slot
        self._locks_of_thread = _of_this_thread.locks
        self._ends: list[TransactionEnd] = []

    @property
    def is_lost(self) -> bool:
        held = self.late.held
        return not held.in_forked_child and held.lost

    def wait_for(self, transactions: list[Connection]) -> None:
        """Hold the lock until these transactions have ended too."""
        ends = [end_of_transaction(connection, _ended) for connection in transactions]
        new = [end for end in ends if end not in self._ends]
        for end in new:
            self._ends.append(end)
            end.waiting.append(self)
        # Last: after an interrupt before this line, no code may enter a lock that nothing releases.
        self._locks_of_thread[self._slot] = self
        if any(len(end.waiting) == _MANY_LOCKS for end in new):
            warn_at_call_site(MANY.format(count=_MANY_LOCKS))

    @property
    def is_waiting(self) -> bool:
        return bool(self._ends)

    def ended(self, end: TransactionEnd) -> bool:
        """One of the transactions has ended. True: it was the last one."""
        self._ends.remove(end)
        if not self._ends and self._locks_of_thread.get(self._slot) is self:
            del self._locks_of_thread[self._slot]
        return not self._ends


def deferred_lock(slot: _Slot) -> DeferredLock | None:
    """The lock that this thread holds already, because a transaction has not ended yet."""
    found = _of_this_thread.locks.get(slot)
    return None if found is None or found.late.held.in_forked_child else found


def _defer(lock: DeferredLock, transactions: list[Connection]) -> None:
    try:
        lock.wait_for(transactions)
    except BaseException:
        if not lock.is_waiting:  # interrupted: nothing else would release it
            release_together([lock.late])
        raise


def _ended(end: TransactionEnd, waiting: list[DeferredLock], committed: bool) -> None:
    done = [one for one in waiting if one.ended(end)]
    on_loss = {id(one.late.held): one.on_loss for one in done}
    for held in release_together(one.late for one in done):
        report_loss = on_loss[id(held)]
        if report_loss is not None:
            report_loss(held)
        if committed:
            _logger.error(
                "A lock was lost before the transaction that it protects was committed. The"
                " transaction is committed, and was not protected to the end."
            )


class TransactionLock:
    """What ``lock()`` returns: a context manager for one block at a time, and a decorator."""

    def __init__(
        self,
        make: Callable[[], Lock],
        slot: _Slot,
        until: Until,
        on_loss: Callable[[Held], object] | None,
    ) -> None:
        self._make = make
        self._lock = make()
        self._slot = slot
        self.until = until
        self._on_loss = on_loss
        self._warns = until == "transaction"
        self._entered_again: tuple[DeferredLock, AbstractContextManager[Held]] | None = None
        self._held: Held | None = None

    def without_warning(self) -> TransactionLock:
        """For a caller that has already warned about the order."""
        self._warns = False
        return self

    def __enter__(self) -> Held:
        refuse_in_event_loop()
        deferred = deferred_lock(self._slot)
        # Inside a block of the same lock the core decides: an error, or ``reentrant``.
        if deferred is None or held_here(deferred.late.backend, self._slot[1]) is not None:
            if deferred is None and self._warns:
                _warn_after_a_query()
            self._held = self._lock.__enter__()
            return self._held
        again = deferred.late.enter_again()
        held = again.__enter__()
        self._entered_again = deferred, again
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        again, self._entered_again = self._entered_again, None
        if again is not None:
            deferred, block = again
            try:
                deferred.wait_for(self._open_transactions())
            finally:
                block.__exit__(kind, error, traceback)
            return
        late = None
        try:
            transactions = self._open_transactions()
            if transactions and self._held is not None and not self._held.lost:
                late = release_later(self._lock)
        finally:
            self._held = None
            if late is None:
                self._lock.__exit__(kind, error, traceback)
        if late is not None:
            _defer(DeferredLock(late, self._slot, self._on_loss), transactions)

    def _open_transactions(self) -> list[Connection]:
        return open_transactions() if self.until == "transaction" else []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        self._lock(function)  # raises for functions that cannot be locked

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with TransactionLock(self._make, self._slot, self.until, self._on_loss):
                return require_finished(function(*args, **kwargs))

        return locked

    def __repr__(self) -> str:
        return repr(self._lock)


def slot_of(backend: object, key: str) -> _Slot:
    return id(backend), normalize_and_validate_key(key)


def require_finished(result: R) -> R:
    """The result of a locked function. Raises if code of the function still has to run."""
    if isinstance(result, StreamingHttpResponse) and not _is_file_response(result):
        raise LockError(
            "InvalidArgument", _STREAMING_REFUSED
        )  # closing the response would end the request
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not inspect.isasyncgen(result):
        return result
    raise LockError(
        "InvalidArgument",
        "the function returned a coroutine or a generator, which runs after the lock is released:"
        " lock the async def itself, or use lock() inside the generator",
    )


def _is_file_response(response: StreamingHttpResponse) -> bool:
    """Whether the body is a file: then no code of the user runs after the view returned."""
    return getattr(response, "file_to_stream", None) is not None


def _warn_after_a_query() -> None:
    if any(has_run_a_query(connection) for connection in open_transactions()):
        warn_at_call_site(AFTER_A_QUERY)
