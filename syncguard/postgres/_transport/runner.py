"""Runs calls, blocking. At most ``max_connections`` at a time."""

from __future__ import annotations

import os
import threading
from typing import TypeVar

from syncguard._backend.deadline import Deadline
from syncguard.errors import LockError, NetworkTimeout
from syncguard.postgres._transport.connect import connect, wait
from syncguard.postgres._transport.connection import Wait
from syncguard.postgres._transport.idle_connections import IdleConnections
from syncguard.postgres._transport.runner_steps import running
from syncguard.postgres.address import Address
from syncguard.postgres.statement_calls import Call

T = TypeVar("T")


class Runner:
    """The connections of one blocking backend."""

    def __init__(self, address: Address, *, max_connections: int, timeout_ms: int) -> None:
        self.address = address
        self.server = str(address)
        self._max = max_connections
        self._timeout_ms = timeout_ms
        self._reset()

    def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        """Run a call. Raises LockError."""
        deadline = deadline or Deadline.after(self._timeout_ms)
        if self._pid != os.getpid():
            self._reset()  # a forked child has no connections yet, and its slots are free
        slots = self._slots
        self._take_slot(slots, deadline)
        try:
            return self._drive(call, deadline)
        finally:
            slots.release()

    def close(self) -> None:
        self.idle.close()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.idle = IdleConnections()
        self._slots = threading.Semaphore(self._max)

    def _take_slot(self, slots: threading.Semaphore, deadline: Deadline) -> None:
        while not slots.acquire(blocking=False):
            try:
                timeout_s = deadline.slice_s()
            except NetworkTimeout:
                raise pool_exhausted(self._max) from None
            if slots.acquire(timeout=timeout_s):
                return

    def _drive(self, call: Call[T], deadline: Deadline) -> T:
        steps = running(call, self.idle, self.server)
        try:
            step = steps.send(None)
            while True:
                try:
                    answer = self._answer(step, deadline)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _answer(self, step: Wait | None, deadline: Deadline) -> object:
        return connect(self.address, deadline) if step is None else wait(step, deadline)


def pool_exhausted(limit: int) -> LockError:
    """All connections of a backend were busy until the deadline."""
    return LockError(
        "RateLimited",
        f"all {limit} connections of this backend are busy: raise max_connections, or use fewer"
        " threads or tasks",
    )
