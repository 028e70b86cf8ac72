"""Runs calls, for asyncio. At most ``max_connections`` at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from syncguard._backend.deadline import Deadline
from syncguard.errors import NetworkTimeout
from syncguard.postgres._transport.connect import connect
from syncguard.postgres._transport.connection import READ, WRITE, Connection, Wait
from syncguard.postgres._transport.idle_connections import IdleConnections
from syncguard.postgres._transport.runner import pool_exhausted
from syncguard.postgres._transport.runner_steps import running
from syncguard.postgres.address import Address
from syncguard.postgres.statement_calls import Call

T = TypeVar("T")


class AsyncRunner:
    """The connections of one asyncio backend."""

    def __init__(self, address: Address, *, max_connections: int, timeout_ms: int) -> None:
        self.address = address
        self.server = str(address)
        self.idle = IdleConnections()
        self._max = max_connections
        self._timeout_ms = timeout_ms
        self._slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        """Run a call. Raises LockError."""
        deadline = deadline or Deadline.after(self._timeout_ms)
        slots = self._slots_of(asyncio.get_running_loop())
        await self._take_slot(slots, deadline)
        try:
            return await self._drive(call, deadline)
        finally:
            slots.release()

    async def close(self) -> None:
        self.idle.close()

    def _slots_of(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self._max))
        return self._slots[1]

    async def _take_slot(self, slots: asyncio.Semaphore, deadline: Deadline) -> None:
        while True:
            try:
                await asyncio.wait_for(slots.acquire(), deadline.slice_s())
                return
            except asyncio.TimeoutError:
                continue
            except NetworkTimeout:
                raise pool_exhausted(self._max) from None

    async def _drive(self, call: Call[T], deadline: Deadline) -> T:
        steps = running(call, self.idle, self.server)
        try:
            step = steps.send(None)
            while True:
                try:
                    answer = await self._answer(step, deadline)
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def _answer(self, step: Wait | None, deadline: Deadline) -> object:
        if step is None:
            return await connect_async(self.address, deadline)
        return await wait_async(step, deadline)


async def connect_async(address: Address, deadline: Deadline) -> Connection:
    """Connect on a thread: libpq resolves host names without asyncio."""
    connecting = asyncio.ensure_future(asyncio.to_thread(connect, address, deadline))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_unused)
        raise


def _close_unused(connecting: asyncio.Future[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


async def wait_async(step: Wait, deadline: Deadline) -> int:
    """Wait for a file. Raises NetworkTimeout or Aborted, as the deadline says."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[int] = loop.create_future()

    def settle(events: int) -> Callable[[], None]:
        return lambda: None if ready.done() else ready.set_result(events)

    if step.events & READ:
        loop.add_reader(step.fileno, settle(READ))
    if step.events & WRITE:
        loop.add_writer(step.fileno, settle(WRITE))
    try:
        while True:
            done, _ = await asyncio.wait({ready}, timeout=deadline.slice_s())
            if done:
                return ready.result()
    finally:
        loop.remove_reader(step.fileno)
        loop.remove_writer(step.fileno)
