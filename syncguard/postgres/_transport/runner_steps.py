"""How a call is run: on which connection, and what is tried again. A generator without I/O.

It yields ``CONNECT`` or a ``Wait``; the blocking and the asyncio runner do the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar, cast

import psycopg

from syncguard.postgres._transport.connection import Connection, Wait
from syncguard.postgres._transport.idle_connections import IdleConnections
from syncguard.postgres.error_codes import FAULTS, FORGOTTEN, RECONNECT, lock_error, sqlstate_of
from syncguard.postgres.statement_calls import Call

T = TypeVar("T")

CONNECT: Final = None
"""Yielded for a new connection; send back the connection."""

Running = Generator[Wait | None, Any, T]

CONFLICT_RETRIES: Final = 3
"""How often a transaction is repeated after a serialization failure or a deadlock (class 40)."""

DUPLICATE_RETRIES: Final = 2
"""How often it is repeated after a duplicate key (23505)."""


def running(call: Call[T], idle: IdleConnections, server: str) -> Running[T]:
    """Run a call to its result. Raises LockError."""
    sent_before = False
    conflicts = duplicates = reconnects = 0
    while True:
        connection = idle.take()
        reused = connection is not None
        try:
            if connection is None:
                connection = cast("Connection", (yield CONNECT))
            call.times_sent += 1
            rows = yield from connection.run(call.statement, call.params)
        except FAULTS as error:
            state = sqlstate_of(error)
            if connection is None:
                raise _failed(error, call, server) from error
            if state in RECONNECT or not isinstance(error, psycopg.Error):
                connection.close()
            if state in FORGOTTEN:
                connection.forget_prepared()
            is_open = connection.is_usable
            (idle.keep if is_open else _close)(connection)
            if state[:2] == "40" and conflicts < CONFLICT_RETRIES:
                conflicts += 1
            elif state == "23505" and duplicates < DUPLICATE_RETRIES:
                duplicates += 1
            elif (state in FORGOTTEN or (reused and not is_open)) and reconnects < 1:
                # A server that restarted has closed the kept connection, and one that became a
                # standby refuses writes: neither shows that the server of this address is down.
                # Sending twice is safe: every call is idempotent.
                reconnects += 1
                sent_before = sent_before or (state not in FORGOTTEN and state != "25006")
            else:
                raise _failed(error, call, server) from error
            continue
        except BaseException:
            # Interrupted between sending and reading: the next call must not read this result.
            if connection is not None:
                connection.close()
            raise
        idle.keep(connection)
        result = call.read(rows)
        return call.if_resent(rows, result) if sent_before and call.if_resent else result


def _close(connection: Connection) -> None:
    connection.close()


def _failed(error: Exception, call: Call[T], server: str) -> Exception:
    return lock_error(error, server=server, key=call.key, lock_id=call.lock_id)
