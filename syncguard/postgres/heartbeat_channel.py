"""Extends many locks on a separate connection for the heartbeat: one statement for each batch.

A separate connection, because all others may be busy. Without retries, because the heartbeat has
its own retry schedule.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Generator, Sequence

from syncguard._backend.deadline import Deadline
from syncguard._backend.optional import Extension
from syncguard.errors import LockError
from syncguard.postgres._transport.connect import connect
from syncguard.postgres._transport.connection import Connection, Row
from syncguard.postgres._transport.runner_async import connect_async, wait_async
from syncguard.postgres.address import Address
from syncguard.postgres.error_codes import FAULTS, lock_error
from syncguard.postgres.statement_calls import Call, Calls
from syncguard.types import ExtendResult


class PostgresExtendChannel:
    """Sends extensions and reads the answers that have arrived. Only ``open`` may block."""

    def __init__(self, calls: Calls, connection: Connection, server: str) -> None:
        self._calls = calls
        self._connection = connection
        self._server = server
        self._pid = os.getpid()
        self._expected: deque[Call[list[ExtendResult]]] = deque()
        self._reading: Generator[None, None, list[Row]] | None = None

    @classmethod
    def open(cls, calls: Calls, address: Address, timeout_ms: float) -> PostgresExtendChannel:
        """Connect. This may block, up to the timeout."""
        try:
            return cls(calls, connect(address, Deadline.after(timeout_ms)), str(address))
        except FAULTS as error:
            raise lock_error(error, server=str(address)) from error

    def fileno(self) -> int:
        return self._connection.fileno

    def send(self, extensions: Sequence[Extension]) -> None:
        call = self._calls.extend(extensions)
        try:
            self._connection.send(call.statement, call.params)
        except FAULTS as error:
            raise lock_error(error, server=self._server) from error
        self._expected.append(call)

    @property
    def wants_to_write(self) -> bool:
        try:
            return self._connection.wants_to_write
        except FAULTS:
            return True  # the next receive raises

    def receive(self) -> list[ExtendResult | LockError]:
        if not self._expected:
            # Readable, but no request is pending: the server has closed the connection.
            raise LockError("ServiceUnavailable")
        answers: list[ExtendResult | LockError] = []
        try:
            while self._expected:
                if self._reading is None:
                    self._reading = self._connection.receive()
                next(self._reading)
                return answers  # more must come
        except StopIteration as done:
            self._reading = None
            answers += self._expected.popleft().read(done.value)
            if self._expected:
                answers += self.receive()
        except FAULTS as error:
            raise lock_error(error, server=self._server) from error
        return answers

    def close(self) -> None:
        self._connection.close()

    def close_if_idle(self) -> None:
        """Shut the connection down, from any thread, unless an answer is pending.

        The heartbeat detects this and closes it; if a lock still needs one, it opens another.
        In a forked child this does nothing, because the connection belongs to the parent.
        """
        if not self._expected and self._pid == os.getpid():
            with contextlib.suppress(OSError, *FAULTS):  # closed already
                duplicate = socket.socket(fileno=os.dup(self._connection.fileno))
                with duplicate:
                    duplicate.shutdown(socket.SHUT_RDWR)


class AsyncPostgresExtendChannel:
    """Sends extensions and awaits the answers."""

    def __init__(self, calls: Calls, connection: Connection, server: str) -> None:
        self._calls = calls
        self._connection = connection
        self._server = server

    @classmethod
    async def open(
        cls, calls: Calls, address: Address, timeout_ms: float
    ) -> AsyncPostgresExtendChannel:
        try:
            connection = await connect_async(address, Deadline.after(timeout_ms))
        except FAULTS as error:
            raise lock_error(error, server=str(address)) from error
        return cls(calls, connection, str(address))

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        call = self._calls.extend(extensions)
        # The heartbeat cancels this earlier, and then closes the channel.
        deadline = Deadline.after(max(ttl_ms for _, ttl_ms in extensions))
        steps = self._connection.run(call.statement, call.params)
        try:
            step = steps.send(None)  # type: ignore[arg-type]
            while True:
                step = steps.send(await wait_async(step, deadline))
        except StopIteration as done:
            return list(call.read(done.value))
        except FAULTS as error:
            raise lock_error(error, server=self._server) from error

    async def close(self) -> None:
        self._connection.close()
