"""Opens a connection, within a deadline. Blocking: asyncio runs it on a thread."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg import capabilities, pq
from psycopg.pq import ConnStatus, PollingStatus

from syncguard._backend.deadline import Deadline
from syncguard.clock import monotonic_ms
from syncguard.errors import InvalidArgument, NetworkTimeout
from syncguard.postgres._transport.connection import READ, WRITE, Connection, Steps, Wait
from syncguard.postgres.address import Address
from syncguard.postgres.error_codes import connection_fault

T = TypeVar("T")

_EVENTS: Final = {PollingStatus.READING: READ, PollingStatus.WRITING: WRITE}


def connect(address: Address, deadline: Deadline) -> Connection:
    """Connect to the first server of the address that accepts. Raises psycopg.Error."""
    if not capabilities.has_pipeline():
        raise InvalidArgument('psycopg needs libpq 14 or newer here: pip install "psycopg[binary]"')
    fault: Exception | None = None
    for conninfo in address.conninfos:
        try:
            return _connect(conninfo, _bounded(deadline, address.connect_timeout_s))
        except NetworkTimeout as error:
            deadline.left_s()  # raises if this was the deadline of the caller
            fault = TimeoutError("the server did not accept the connection in time")
            fault.__cause__ = error
        except psycopg.Error as error:
            fault = error
    assert fault is not None
    raise fault


def drive(steps: Steps, deadline: Deadline) -> list[list[str | None]]:
    """Run steps to their end, blocking."""
    return _drive(steps.send, steps.throw, deadline)


def _drive(
    send: Callable[[int], Wait], throw: Callable[[BaseException], Wait], deadline: Deadline
) -> list[list[str | None]]:
    try:
        step = send(None)  # type: ignore[arg-type]
        while True:
            try:
                ready = wait(step, deadline)
            except BaseException as error:
                step = throw(error)
            else:
                step = send(ready)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def wait(step: Wait, deadline: Deadline) -> int:
    """Wait for a file. Raises NetworkTimeout or Aborted, as the deadline says."""
    poll = select.poll()
    poll.register(
        step.fileno,
        (select.POLLIN if step.events & READ else 0)
        | (select.POLLOUT if step.events & WRITE else 0),
    )
    while True:
        # Rounded up: poll(0) in a loop would use the processor until the deadline.
        for _, events in poll.poll(deadline.slice_s() * 1000 + 1):
            found = (READ if events & ~select.POLLOUT else 0) | (
                WRITE if events & select.POLLOUT else 0
            )
            return found or step.events


def _connect(conninfo: bytes, deadline: Deadline) -> Connection:
    pgconn = pq.PGconn.connect_start(conninfo)
    try:
        events = WRITE
        while True:
            if pgconn.status == ConnStatus.BAD:
                raise _fault(pgconn)
            wait(Wait(pgconn.socket, events), deadline)
            status = pgconn.connect_poll()
            if status == PollingStatus.OK:
                break
            if status == PollingStatus.FAILED:
                raise _fault(pgconn)
            events = _EVENTS.get(PollingStatus(status), READ)
        connection = Connection(pgconn)
        drive(connection.learn_whether_direct(), deadline)
    except BaseException:
        pgconn.finish()
        raise
    return connection


def _fault(pgconn: pq.abc.PGconn) -> psycopg.Error:
    used = bool(pgconn.used_password or pgconn.needs_password)
    return connection_fault(pgconn.get_error_message(), used_password=used)


def _bounded(deadline: Deadline, seconds: float | None) -> Deadline:
    if seconds is None:
        return deadline
    return Deadline(min(deadline.at_ms, monotonic_ms() + seconds * 1000), deadline.signal)
