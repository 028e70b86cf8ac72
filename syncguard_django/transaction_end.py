"""The moment at which a transaction has ended: after its commit and before the ``on_commit`` hooks
of users, or after its rollback.

Django tells nobody of a rollback, and of a commit only by hooks that run in turn. So the methods
that end a transaction are replaced on the one connection, from the first lock that waits for its
transaction until that transaction has ended, and then put back.
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


Ended = Callable[["TransactionEnd", list[Any], bool], None]
"""Told what waited, and whether the transaction was committed."""


def end_of_transaction(connection: Connection, ended: Ended) -> TransactionEnd:
    """The end of the transaction that is open now. ``ended`` is called when it has come."""
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
    """What waits for the end of one transaction. Subclasses notice that it has come."""

    methods: tuple[str, ...]

    def __init__(self, connection: Connection, ended: Ended) -> None:
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
        """Put the methods back, except where somebody has replaced ours meanwhile."""
        instance = self.connection.__dict__
        instance.pop(_ATTRIBUTE, None)
        for name, previous in self._replaced.items():
            if instance.get(name) != getattr(self, name):
                continue  # ours goes on to call the original, and has nothing else to do
            if previous is None:
                del instance[name]
            else:
                instance[name] = previous

    def has_come(self, *, committed: bool) -> None:
        """The transaction is over."""
        if self.connection.__dict__.get(_ATTRIBUTE) is self:
            self.unwatch()
        waiting, self.waiting = self.waiting, []
        if waiting:
            self._ended(self, waiting, committed)

    def refuse_if_lost(self, rollback: Callable[[], object]) -> None:
        """Roll back instead of committing what was not protected to the end."""
        if any(one.is_lost for one in self.waiting):
            # By hand: Django rolls back after a DatabaseError only, and without a rollback SQLite
            # would commit as soon as autocommit is on again.
            rollback()
            raise LockLost(
                "a lock was lost before the transaction that it protects was committed:"
                " the transaction was rolled back"
            )

    def close(self) -> None:
        self._originals["close"]()
        # A database in memory ignores this, and its transaction goes on.
        if self.connection.connection is None or self.connection.closed_in_transaction:
            self.has_come(committed=False)


class EndOfTransaction(TransactionEnd):
    """The end of a transaction of the database."""

    methods = ("commit", "rollback", "close", "_set_autocommit")

    def commit(self) -> None:
        self.refuse_if_lost(self.connection.rollback)
        self._originals["commit"]()
        self.has_come(committed=True)

    def rollback(self) -> None:
        self._originals["rollback"]()
        self.has_come(committed=False)

    def _set_autocommit(self, autocommit: bool) -> None:
        self._originals["_set_autocommit"](autocommit)
        if autocommit:  # without a commit before, this was one
            self.has_come(committed=True)


class EndInsideTestCase(TransactionEnd):
    """The end of what would be a transaction, if ``TestCase`` were not around it."""

    methods = ("savepoint_commit", "savepoint_rollback", "close")

    def watch(self) -> None:
        connection = self.connection
        position = outermost_block(connection)
        assert position is not None
        self._savepoint = savepoint_of(connection, position)
        super().watch()
        if self._savepoint is None:  # then Django calls nothing at its end
            connection.atomic_blocks = _Blocks(connection.atomic_blocks, position, self)

    def unwatch(self) -> None:
        super().unwatch()
        if isinstance(self.connection.atomic_blocks, _Blocks):
            self.connection.atomic_blocks = list(self.connection.atomic_blocks)

    def savepoint_commit(self, savepoint: str | None) -> None:
        if savepoint != self._savepoint:
            self._originals["savepoint_commit"](savepoint)
            return
        self.refuse_if_lost(lambda: self.connection.savepoint_rollback(savepoint))  # type: ignore[arg-type]
        self._originals["savepoint_commit"](savepoint)
        self.has_come(committed=True)

    def savepoint_rollback(self, savepoint: str | None) -> None:
        try:
            self._originals["savepoint_rollback"](savepoint)
        finally:
            if savepoint == self._savepoint:
                self.has_come(committed=False)


class _Blocks(list[Any]):
    """Django's list of open blocks, which tells when the one at ``position`` ends."""

    def __init__(self, blocks: list[Any], position: int, end: TransactionEnd) -> None:
        super().__init__(blocks)
        self._position = position
        self._end = end

    def pop(self, *index: Any) -> Any:
        block = super().pop(*index)
        if len(self) == self._position:
            self._end.has_come(committed=True)
        return block
