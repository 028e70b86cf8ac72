"""Detects the end of a transaction: after its commit and before the user's ``on_commit`` hooks, or
after its rollback.

Django has no hook for a rollback, and the hooks for a commit run in the order of registration. So
the methods of the connection that end a transaction are replaced while a lock waits for the
transaction, and restored after it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from django.db.backends.base.base import BaseDatabaseWrapper

from syncguard import LockLost
from syncguard_django.open_transactions import outermost_block, savepoint_of

Connection = BaseDatabaseWrapper

_ATTRIBUTE: Final = "_syncguard_transaction_end"


class Waiting(Protocol):
    """What waits for the end of a transaction."""

    @property
    def is_lost(self) -> bool:
        """Whether the transaction must not be committed."""
        ...


OnEnded = Callable[["TransactionEnd", list[Any], bool], None]
"""Called with what waited, and whether the transaction was committed."""


def end_of_transaction(connection: Connection, ended: OnEnded) -> TransactionEnd:
    """The end of the transaction that is open now. Calls ``ended`` after it."""
    end = connection.__dict__.get(_ATTRIBUTE)
    if end is None:
        position = outermost_block(connection)
        cls = EndOfTransaction if not position else EndInsideTestCase
        end = cls(connection, ended)
        connection.__dict__[_ATTRIBUTE] = end
        end.watch()
    result: TransactionEnd = end
    return result


class TransactionEnd:
    """What waits for the end of one transaction. Subclasses detect the end."""

    methods: tuple[str, ...]

    def __init__(self, connection: Connection, ended: OnEnded) -> None:
        self.connection = connection
        self.waiting: list[Waiting] = []
        self._ended = ended
        self._originals: dict[str, Callable[..., Any]] = {}
        self._replaced: dict[str, Callable[..., Any] | None] = {}

    def watch(self) -> None:
        """Replace the methods of the connection."""
        instance = self.connection.__dict__
        for name in self.methods:
            self._originals[name] = getattr(self.connection, name)
            self._replaced[name] = instance.get(name)
            instance[name] = getattr(self, name)

    def unwatch(self) -> None:
        """Restore the methods, except those that other code has replaced meanwhile."""
        instance = self.connection.__dict__
        instance.pop(_ATTRIBUTE, None)
        for name, previous in self._replaced.items():
            if instance.get(name) != getattr(self, name):
                continue  # our method stays, and now only calls the original
            if previous is None:
                del instance[name]
            else:
                instance[name] = previous

    def transaction_ended(self, *, committed: bool) -> None:
        """The transaction has ended."""
        if self.connection.__dict__.get(_ATTRIBUTE) is self:
            self.unwatch()
        waiting, self.waiting = self.waiting, []
        if waiting:
            self._ended(self, waiting, committed)

    def refuse_if_lost(self, rollback: Callable[[], object]) -> None:
        """If a lock was lost, roll back and raise LockLost instead of committing."""
        if any(one.is_lost for one in self.waiting):
            # Explicitly: Django rolls back only after a DatabaseError. Without a rollback SQLite
            # would commit when autocommit is turned on again.
            rollback()
            raise LockLost(
                "a lock was lost before the transaction that it protects was committed:"
                " the transaction was rolled back"
            )

    def close(self) -> None:
        self._originals["close"]()
        # A database in memory ignores close(), and its transaction continues.
        if self.connection.connection is None or self.connection.closed_in_transaction:
            self.transaction_ended(committed=False)


class EndOfTransaction(TransactionEnd):
    """The end of a real transaction of the database."""

    methods = ("commit", "rollback", "close", "_set_autocommit")

    def commit(self) -> None:
        self.refuse_if_lost(self.connection.rollback)
        self._originals["commit"]()
        self.transaction_ended(committed=True)

    def rollback(self) -> None:
        self._originals["rollback"]()
        self.transaction_ended(committed=False)

    def _set_autocommit(self, autocommit: bool) -> None:
        self._originals["_set_autocommit"](autocommit)
        if autocommit:  # turning autocommit on commits an open transaction
            self.transaction_ended(committed=True)


class EndInsideTestCase(TransactionEnd):
    """The end of a block inside ``TestCase`` that would be a transaction in production."""

    methods = ("savepoint_commit", "savepoint_rollback", "close")

    def watch(self) -> None:
        connection = self.connection
        position = outermost_block(connection)
        assert position is not None
        self._savepoint = savepoint_of(connection, position)
        super().watch()
        if self._savepoint is None:  # then Django calls no method at its end
            connection.atomic_blocks = _ObservedBlocks(connection.atomic_blocks, position, self)

    def unwatch(self) -> None:
        super().unwatch()
        if isinstance(self.connection.atomic_blocks, _ObservedBlocks):
            self.connection.atomic_blocks = list(self.connection.atomic_blocks)

    def savepoint_commit(self, savepoint: str | None) -> None:
        if savepoint != self._savepoint:
            self._originals["savepoint_commit"](savepoint)
            return
        self.refuse_if_lost(lambda: self.connection.savepoint_rollback(savepoint))  # type: ignore[arg-type]
        self._originals["savepoint_commit"](savepoint)
        self.transaction_ended(committed=True)

    def savepoint_rollback(self, savepoint: str | None) -> None:
        try:
            self._originals["savepoint_rollback"](savepoint)
        finally:
            if savepoint == self._savepoint:
                self.transaction_ended(committed=False)


class _ObservedBlocks(list[Any]):
    """Django's list of open blocks, which detects that the block at ``position`` ends."""

    def __init__(self, blocks: list[Any], position: int, end: TransactionEnd) -> None:
        super().__init__(blocks)
        self._position = position
        self._end = end

    def pop(self, *index: Any) -> Any:
        block = super().pop(*index)
        if len(self) == self._position:
            self._end.transaction_ended(committed=True)
        return block
