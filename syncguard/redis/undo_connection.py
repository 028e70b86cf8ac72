"""Where undos are sent: a new connection for each try, made like those of the backend's client.

A connection that was open before the time-out is not used: the server may read it before it reads
the request that has to be undone, or long after.
"""

from __future__ import annotations

import asyncio
import copy
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import redis.asyncio

from syncguard._lock.background_tasks import keep
from syncguard.redis._transport.connections import (
    AsyncPool,
    Pool,
    private_async_connection,
    private_connection,
)
from syncguard.redis._transport.error_codes import FAULTS, is_redirection
from syncguard.redis._transport.request_packing import pack
from syncguard.redis.script_calls import Call

Answered = Callable[[str], None]


class UndoOnPool(NamedTuple):
    """The server of a blocking client's pool."""

    pool: Pool

    def run(self, calls: Sequence[Call[bool]], timeout_s: float, answered: Answered) -> None:
        connection = private_connection(self.pool, timeout_s)
        try:
            connection.connect()  # else a Sentinel's connection would not ask for the address
            for call in calls:
                connection.send_packed_command([_packed(call)])
                connection.read_response()
                answered(_lock_id(call))
        finally:
            connection.disconnect()


class UndoOnNode(NamedTuple):
    """The node of a cluster that has the lock by the map of its client, blocking or asyncio.

    If the undo fails, ``update_map`` lets the client look for another one, for the next try. It
    gets the name, and whether its slot has moved.
    """

    target: UndoOnPool | UndoOnAsyncPool
    update_map: Callable[[str, bool], object]

    def run(self, calls: Sequence[Call[bool]], timeout_s: float, answered: Answered) -> None:
        left = {_lock_id(call): call for call in calls}

        def answer(lock_id: str) -> None:
            del left[lock_id]
            answered(lock_id)

        try:
            self.target.run(calls, timeout_s, answer)
        except FAULTS as error:
            for call in left.values():  # the first has failed
                self.update_map(call.keys[0], is_redirection(error))
                break
            raise


class UndoOnAsyncPool(NamedTuple):
    """The server of an asyncio client's pool. Runs on an event loop of its own: the client's loop
    may be closed."""

    pool: AsyncPool

    def run(self, calls: Sequence[Call[bool]], timeout_s: float, answered: Answered) -> None:
        loop = _ResolvingLoop()
        try:
            loop.run_until_complete(self._run(calls, timeout_s, answered))
        finally:
            loop.close()

    async def _run(self, calls: Sequence[Call[bool]], timeout_s: float, answered: Answered) -> None:
        settings = await _settings_on_this_loop(self.pool, timeout_s)
        connection = private_async_connection(self.pool, timeout_s, **settings)
        try:
            await connection.connect()
            for call in calls:
                await connection.send_packed_command([_packed(call)])
                await connection.read_response()
                answered(_lock_id(call))
        finally:
            await connection.disconnect()


class RunsCalls(Protocol):
    """A runner of blocking calls."""

    def run(self, call: Call[bool]) -> bool: ...


class RunsAsyncCalls(Protocol):
    """A runner of asyncio calls."""

    def run(self, call: Call[bool]) -> Coroutine[Any, Any, bool]: ...


class UndoOnClient(NamedTuple):
    """A blocking client whose connections are not sockets: a mock."""

    runner: RunsCalls

    def run(self, calls: Sequence[Call[bool]], _timeout_s: float, answered: Answered) -> None:
        for call in calls:
            self.runner.run(call)
            answered(_lock_id(call))


class UndoOnLoop(NamedTuple):
    """The same for asyncio: a mock can be used only in its own loop."""

    runner: RunsAsyncCalls
    loop: asyncio.AbstractEventLoop

    def run(self, calls: Sequence[Call[bool]], timeout_s: float, answered: Answered) -> None:
        for call in calls:
            outcome: Future[bool] = Future()
            # The coroutine is made in the loop: one that ends now would never await it. Raises if
            # the loop is closed.
            self.loop.call_soon_threadsafe(self._begin, call, outcome)
            outcome.result(timeout_s)
            answered(_lock_id(call))

    def _begin(self, call: Call[bool], outcome: Future[bool]) -> None:
        async def run() -> None:
            try:
                outcome.set_result(await self.runner.run(call))
            except asyncio.CancelledError:
                outcome.cancel()
                raise
            except Exception as error:
                outcome.set_exception(error)

        keep(self.loop.create_task(run()))


def _packed(call: Call[bool]) -> bytes:
    return pack(("EVAL", call.script.text, str(len(call.keys)), *call.keys, *call.args))


def _lock_id(call: Call[bool]) -> str:
    assert call.lock_id is not None
    return call.lock_id


class _ResolvingLoop(asyncio.SelectorEventLoop):
    """Resolves names on its own thread: at exit no executor can start another."""

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        return socket.getaddrinfo(*args, **options)


async def _settings_on_this_loop(pool: Any, timeout_s: float) -> dict[str, Any]:
    """The settings of a connection that must not use an object of another loop.

    Only a connection of a Sentinel pool does: it asks the clients of the pool for the address.
    """
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return {}
    known = [client.connection_pool.connection_kwargs for client in manager.sentinels]
    sentinels = copy.copy(manager)
    sentinels.sentinels = [
        redis.asyncio.Redis(host=each["host"], port=each["port"], **manager.sentinel_kwargs)
        for each in known
    ]
    try:
        finding = sentinels.discover_master(pool.service_name)
        return {"connection_pool": _Master(await asyncio.wait_for(finding, timeout_s))}
    finally:
        for client in sentinels.sentinels:
            await client.aclose()


class _Master(NamedTuple):
    """The part of a Sentinel pool that its connections use; its address is known."""

    address: tuple[str, int]
    is_master: bool = True
    check_connection: bool = False

    async def get_master_address(self) -> tuple[str, int]:
        return self.address
