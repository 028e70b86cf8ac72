"""One connection, in libpq's pipeline mode: sends a transaction and reads its results.

Nothing here waits. A generator yields what it waits for, and a driver waits: blocking in
``runner``, with asyncio in ``runner_async``, in its own selector in ``heartbeat_channel``.
"""

from __future__ import annotations

import os
import select
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from syncguard.postgres.error_codes import fault_of
from syncguard.postgres.statements import Statement

READ: Final = 1
WRITE: Final = 2

Params = Sequence[bytes | None]
Row = list[str | None]


class Wait(NamedTuple):
    """Wait until the file is readable, or writable if wanted. Send back which."""

    fileno: int
    events: int


Steps = Generator[Wait, int, list[Row]]

# READ COMMITTED explicitly: a role or a database may have a stricter default, which would fail
# with serialization errors and read the time before a row is locked. On a direct connection once
# for the session, so that a statement needs no BEGIN and COMMIT; behind a pooler, where a session
# is shared with others, in each transaction.
_LEARN: Final = Statement(
    "pid",
    b"SELECT pg_backend_pid(), CASE WHEN pg_backend_pid() = $1::int"
    b" THEN set_config('default_transaction_isolation', 'read committed', false) END",
)
_BEGIN: Final = Statement("begin", b"BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT: Final = Statement("commit", b"COMMIT")
_ROLLBACK: Final = Statement("rollback", b"ROLLBACK")
_OK: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


class _Sent(NamedTuple):
    """A command that was sent."""

    is_wanted: bool = False
    """Whether the caller wants its rows."""
    prepares: str | None = None
    """The name of the statement that it prepares."""


class NotListeningError(Exception):
    """LISTEN has no effect on this connection."""


class Connection:
    """A connection that is open. Only one transaction at a time, except in ``send``."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._pid = os.getpid()
        self._prepared: set[str] = set()
        self._sent: list[_Sent] = []
        """The commands without a result yet."""
        self.is_direct = False
        """False behind a pooler such as PgBouncer, or as long as that is not known."""
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()

    @property
    def fileno(self) -> int:
        return self._pgconn.socket

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open, idle, of this process, and not closed by the server."""
        return (
            self._pid == os.getpid()
            and self._pgconn.status == ConnStatus.OK
            and self._pgconn.transaction_status == TransactionStatus.IDLE
            and not self._has_input()
        )

    def close(self) -> None:
        """Close. In a forked child this does nothing: the connection belongs to the parent."""
        if self._pid == os.getpid():
            self._pgconn.finish()

    def forget_prepared(self) -> None:
        """Prepare no statement any more: the server did not keep one."""
        self._prepared.clear()
        self.is_direct = False

    def learn_whether_direct(self) -> Steps:
        """Find out whether a pooler is in between: it invents the process id that it reports."""
        reported = str(self._pgconn.backend_pid)
        rows = yield from self.run(_LEARN, (reported.encode(),))
        self.is_direct = [row[0] for row in rows] == [reported]
        return rows

    def listen(self, channel: str) -> Steps:
        """LISTEN, then leave the pipeline. Raises ``NotListeningError`` behind a pooler.

        In transaction mode a pooler executes LISTEN on a connection that it then gives to others.
        """
        if self.is_direct:
            yield from self.run(Statement("listen", f"LISTEN {channel}".encode()), ())
            channels = yield from self.run(
                Statement("listening", b"SELECT pg_listening_channels()"), ()
            )
            if [channel] in channels:
                self._pgconn.exit_pipeline_mode()
                return channels
        raise NotListeningError("this connection cannot listen: a pooler is in between")

    def notifications(self) -> list[str]:
        """The payloads that arrived on a connection that listens."""
        self._pgconn.consume_input()
        self._check_open(None)
        found = []
        while (notified := self._pgconn.notifies()) is not None:
            found.append(notified.extra.decode())
        return found

    def run(self, statement: Statement, params: Params) -> Steps:
        """Run one statement in a transaction: one round trip. Raises psycopg.Error."""
        self.send(statement, params)
        try:
            return (yield from self._results())
        except psycopg.Error:
            if self._pgconn.transaction_status == TransactionStatus.INERROR:
                # The server skipped the COMMIT, and waits for the end of the transaction.
                self._send([_ROLLBACK], ())
                yield from self._results()
            raise

    def send(self, statement: Statement, params: Params) -> None:
        """Hand a transaction to libpq, which sends what it can without blocking."""
        # A statement without BEGIN is a transaction that ends with the synchronisation point.
        self._send([statement] if self.is_direct else [_BEGIN, statement, _COMMIT], params)
        self._pgconn.flush()

    @property
    def wants_to_write(self) -> bool:
        return self._pgconn.flush() > 0

    def receive(self) -> Generator[None, None, list[Row]]:
        """Read the results of the transaction that was sent first. Yields where more must come."""
        self._pgconn.consume_input()
        rows: list[Row] = []
        fault: psycopg.Error | None = None
        while True:
            while self._pgconn.is_busy():
                yield
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None:
                self._check_open(fault)
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                break
            sent = self._sent.pop(0) if self._sent else _Sent()
            if result.status in _OK:
                if sent.is_wanted:
                    rows = _rows_of(result)
                continue
            if sent.prepares is not None:
                self._prepared.discard(sent.prepares)  # failed, or skipped after a failure
            if result.status != ExecStatus.PIPELINE_ABORTED:
                fault = fault or fault_of(result)
                self._check_open(fault)
        if fault is not None:
            raise fault
        return rows

    def _send(self, statements: Sequence[Statement], params: Params) -> None:
        for statement in statements:
            own = params if statement not in (_BEGIN, _COMMIT, _ROLLBACK) else ()
            name = b"syncguard_" + statement.name.encode()
            if self.is_direct:
                if statement.name not in self._prepared:
                    self._pgconn.send_prepare(name, statement.text)
                    self._sent.append(_Sent(prepares=statement.name))
                    self._prepared.add(statement.name)
                self._pgconn.send_query_prepared(name, list(own))
            else:
                self._pgconn.send_query_params(statement.text, list(own))
            self._sent.append(_Sent(is_wanted=statement not in (_BEGIN, _COMMIT, _ROLLBACK)))
        self._pgconn.pipeline_sync()

    def _results(self) -> Steps:
        while self._pgconn.flush():
            if (yield Wait(self.fileno, READ | WRITE)) & READ:
                self._pgconn.consume_input()
        reading = self.receive()
        while True:
            try:
                next(reading)
            except StopIteration as done:
                rows: list[Row] = done.value
                return rows
            yield Wait(self.fileno, READ)

    def _check_open(self, fault: psycopg.Error | None) -> None:
        if self._pgconn.status != ConnStatus.OK:
            raise fault or psycopg.OperationalError("the server closed the connection")

    def _has_input(self) -> bool:
        # Nothing was sent, so if there is something to read, the server closed the connection.
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        return bool(poll.poll(0))


def _rows_of(result: pq.abc.PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [
        [None if (v := result.get_value(row, col)) is None else v.decode() for col in columns]
        for row in range(result.ntuples)
    ]
