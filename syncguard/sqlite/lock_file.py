"""``LockFile``: the connection of this process to the file, and how it runs an operation.

- SQLite's own waiting for a busy file is off: with it, the slowest of 8 processes got 1 lock while
  the fastest got 176. We retry after random pauses instead.
- A forked child must not use a connection of its parent, not even close it, and SQLite would share
  its bookkeeping of file locks with the child. So the connection is closed before each fork.
- If the file was deleted or replaced, its name is opened again: else the processes that started
  later would lock in another file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import threading
import time
import weakref
from typing import Final, Literal, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._embedded.operations import Operation
from syncguard.clock import holder_clock_ms
from syncguard.errors import ErrorContext, LockError, NetworkTimeout
from syncguard.sqlite.error_codes import is_busy, lock_error
from syncguard.sqlite.file_system import file_system_of, is_network
from syncguard.sqlite.schema import Tables, prepare
from syncguard.sqlite.transaction import SQLiteTransaction

T = TypeVar("T")
Synchronous = Literal["normal", "full"]
Identity = tuple[int, int]

_logger = logging.getLogger("syncguard")

_PAUSE_S: Final = (0.0005, 0.003)
"""The pauses between two attempts at a busy file."""

_CLEANUP_CHANCE: Final = 1 / 64
"""How often a write also deletes the rows of locks that expired long ago."""


class LockFile:
    """One file, for all threads of this process."""

    def __init__(self, path: str, tables: Tables, synchronous: Synchronous) -> None:
        self.path: Final = path
        self.synchronous: Final = synchronous
        self._tables = tables
        self._identity: Identity | None = None
        self._has_warned = False
        # Reentrant: a signal handler, or a generator that the garbage collector closes, may
        # release a lock in the middle of an operation of the same thread.
        self.guard: Final = threading.RLock()
        self._depth = 0
        self._open = _OpenConnection()
        weakref.finalize(self, self._open.close)
        _files.add(self)

    def run(self, operation: Operation[T], deadline: Deadline) -> T:
        """Execute an operation in one transaction. Raises LockError; then nothing was changed."""
        deadline.left_s()  # raises if the time is over already, or the signal is set
        while True:
            try:
                with self.guard:
                    return self._run_once(operation)
            except sqlite3.Error as error:
                if not is_busy(error) and not isinstance(error, _OvertakenError):
                    raise lock_error(error, self.path) from error
                self._pause(deadline, error)

    def setup(self, deadline: Deadline) -> None:
        """Make the file and its tables, if they do not exist."""
        self.run(Operation(lambda _store: None, writes=False), deadline)

    def close(self) -> None:
        with self.guard:
            self._open.close()

    def _run_once(self, operation: Operation[T]) -> T:
        if self._depth:
            # The operation below us on the stack is in the middle of its transaction. It starts
            # again: its connection is closed, so it cannot write a part of it.
            self._open.close()
        self._depth += 1
        try:
            connection = self._connected()
            try:
                return self._run_on(connection, operation)
            except sqlite3.ProgrammingError as error:
                if connection is self._open.connection:
                    raise
                raise _OvertakenError from error
        finally:
            self._depth -= 1

    def _run_on(self, connection: sqlite3.Connection, operation: Operation[T]) -> T:
        if connection.in_transaction:  # an interrupt came in the middle of a rollback
            connection.execute("ROLLBACK")
        operation.begun_at_ms = holder_clock_ms()
        try:
            connection.execute("BEGIN IMMEDIATE" if operation.writes else "BEGIN")
            # The time is read after the file is locked: we may have waited for it.
            store = SQLiteTransaction(connection, self._tables, time.time_ns() // 1_000_000)
            result = operation.run(store)
            if operation.writes and random.random() < _CLEANUP_CHANCE:  # noqa: S311
                store.remove_expired()
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return result

    def _pause(self, deadline: Deadline, busy: sqlite3.Error) -> None:
        try:
            left = deadline.left_s()
        except NetworkTimeout:
            raise NetworkTimeout(
                f"the lock file {self.path} was busy until the time was over",
                ErrorContext(cause=busy),
            ) from busy
        time.sleep(min(left, random.uniform(*_PAUSE_S)))  # noqa: S311

    # -- the connection -----------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        connection = self._open.connection
        if connection is not None:
            if not self._open.is_ours:
                raise LockError(
                    "Internal",
                    "this process was forked by a server that does not tell Python, with the lock"
                    " file open: SQLite cannot be used here. Use no lock before the fork",
                )
            if self._identity == _identity(self.path):
                return connection
            _logger.warning(
                "The lock file %s was deleted or replaced; the locks in the old file are lost.",
                self.path,
            )
            self._open.close()
        connection = self._connect()
        self._open.set(connection)
        self._identity = _identity(self.path)
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(f"PRAGMA synchronous={self.synchronous}")
            prepare(connection, self._tables)
        except BaseException:
            connection.close()
            raise
        self._warn_of_network()
        return connection

    def _warn_of_network(self) -> None:
        file_system = "" if self._has_warned else file_system_of(os.path.dirname(self.path))
        self._has_warned = True
        if is_network(file_system):
            _logger.warning(
                "The lock file %s is on a network file system (%s): locks do not exclude the"
                " processes of other machines, and the file can be damaged.",
                self.path,
                file_system,
            )


class _OvertakenError(sqlite3.OperationalError):
    """Another operation of this thread ran in the middle of this one: run it again."""


class _OpenConnection:
    """The open connection, if there is one. ``weakref.finalize`` closes it with its file."""

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None
        self._pid = 0

    def set(self, connection: sqlite3.Connection) -> None:
        self._pid = os.getpid()
        self.connection = connection

    @property
    def is_ours(self) -> bool:
        """False after a fork that Python did not see: a child may not even close it."""
        return self._pid == os.getpid()

    def close(self) -> None:
        connection = self.connection
        if connection is None or not self.is_ours:
            return
        self.connection = None
        # First, because a statement that is still open would delay the end of the transaction.
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        connection.close()


def _identity(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# -- fork -----------------------------------------------------------------------------------------

_files: Final[weakref.WeakSet[LockFile]] = weakref.WeakSet()
_closed_for_fork: Final[list[LockFile]] = []


def _before_fork() -> None:
    # In one order for all threads: else two threads that fork could wait for each other.
    files = sorted(_files, key=id)
    for file in files:
        file.guard.acquire()
        file.close()
    _closed_for_fork.extend(files)


def _after_fork() -> None:
    while _closed_for_fork:
        _closed_for_fork.pop().guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
