"""Runs calls for asyncio: the asyncio version of ``runner``, with the same calls.

``PipelinedRunner`` uses one connection for all calls of an event loop. ``AsyncConnectionRunner``
takes connections of a small pool, whose limit the user chose. There, a call that is cancelled
between sending and reading closes its connection, so that no later call reads its reply.
``AsyncCommandRunner`` uses the client's commands, for mocks, and ``AsyncClusterRunner`` for
clusters. The connections of a small pool and of a cluster belong to one event loop at a time.

The caller has to handle that the server may have executed a call that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import redis
import redis.asyncio
from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import NoScriptError, SlotNotCoveredError

from syncguard._backend.deadline import Deadline
from syncguard._lock.background_tasks import keep
from syncguard._lock.cancellation import outcome_task
from syncguard.errors import NetworkTimeout
from syncguard.redis._transport.acknowledged_connection import AcknowledgedConnection
from syncguard.redis._transport.closed_connection import closed_is_a_fault
from syncguard.redis._transport.cluster_map import AsyncClusterMap
from syncguard.redis._transport.cluster_runner import (
    CLUSTER_ATTEMPTS,
    encoded,
    evalsha,
    evaluate,
    pair_of,
)
from syncguard.redis._transport.connections import (
    LARGE_POOL,
    AsyncConnection,
    AsyncPool,
    can_pipeline,
    describe_server,
    leave_other_loops,
    node_of,
    shared,
    take_async,
)
from syncguard.redis._transport.error_codes import (
    FAULTS,
    NOT_SERVING,
    REDIRECTIONS,
    lock_error,
    not_serving,
)
from syncguard.redis._transport.pipelined_connection import PipelinedConnection
from syncguard.redis._transport.runner import packed
from syncguard.redis.replica_acknowledgement import ReplicaAcknowledgement
from syncguard.redis.script_calls import Call

T = TypeVar("T")

_CONNECTION_FAILURES = (redis.ConnectionError, redis.TimeoutError, OSError, asyncio.TimeoutError)
_RECONNECT_AFTER: tuple[type[Exception], ...] = (*_CONNECTION_FAILURES, *NOT_SERVING)


class AsyncRunner(Protocol):
    """Runs calls, one round trip each. With a deadline, only as long as it allows."""

    outlives_caller: bool
    """Whether a call whose caller is cancelled goes on, and its connection stays usable."""

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T: ...

    async def close(self) -> None: ...


_abandoned: Final[list[PipelinedConnection]] = []
"""The connections of a parent process: a forked child may neither use nor close them."""


class PipelinedRunner:
    """Runs all calls of an event loop on one connection. Each event loop has its own."""

    outlives_caller = True

    def __init__(self, pool: AsyncPool, wait: tuple[str, ...] | None = None) -> None:
        self._pool = pool
        self._wait = wait
        # Shared by all backends on this pool.
        self._connections: dict[asyncio.AbstractEventLoop, PipelinedConnection] = shared(
            pool, "_".join(("pipelined", *(wait or ()))), dict
        )
        self._server = describe_server(pool)

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None or not connection.is_usable():
            connection = self._open(loop)
        try:
            reply, resent = await connection.run(call, deadline)
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, server=self._server, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    async def close(self) -> None:
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None and connection.is_usable():
            connection.close()
            await asyncio.sleep(0)  # lets the loop close the socket
        self._close_those_of_closed_loops()

    def _open(self, loop: asyncio.AbstractEventLoop) -> PipelinedConnection:
        self._close_those_of_closed_loops()
        connection = self._connections[loop] = (
            PipelinedConnection(self._pool, loop)
            if self._wait is None
            else AcknowledgedConnection(self._pool, loop, self._wait)
        )
        return connection

    def _close_those_of_closed_loops(self) -> None:
        # A copy, and pop: other threads open and close the connections of their loops meanwhile.
        for loop, connection in self._connections.copy().items():
            if not connection.is_usable():
                _abandoned.append(connection)
                self._connections.pop(loop, None)
            elif loop.is_closed():
                connection.close()
                self._connections.pop(loop, None)


class AcknowledgingRunner:
    """Two connections for each event loop: WAIT blocks the one on which it was sent."""

    outlives_caller = True

    def __init__(self, plain: PipelinedRunner, acknowledged: PipelinedRunner) -> None:
        self._plain = plain
        self._acknowledged = acknowledged

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        runner = self._plain if call.wait is None else self._acknowledged
        return await runner.run(call, deadline)

    async def close(self) -> None:
        await self._plain.close()
        await self._acknowledged.close()


class AsyncConnectionRunner:
    """Runs calls on connections of the client's own pool, and keeps none between calls."""

    outlives_caller = False

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._server = describe_server(pool)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            leave_other_loops(self._pool)
            self._loop = loop
        return await within(deadline, self._run(call))

    async def _run(self, call: Call[T]) -> T:
        try:
            connection = await take_async(self._pool)
            try:
                reply, resent = await self._exchange(connection, call)
            except BaseException as error:
                # Possibly interrupted between sending and reading: the next call must not read the
                # reply to this one.
                if not isinstance(error, redis.ResponseError) or isinstance(error, NOT_SERVING):
                    await connection.disconnect(nowait=True)
                raise
            finally:
                await self._pool.release(connection)
            result = call.read(reply)
        except FAULTS as error:
            raise lock_error(
                error, server=self._server, key=call.key, lock_id=call.lock_id
            ) from error
        return call.if_resent(reply, result) if resent and call.if_resent else result

    async def close(self) -> None: ...

    async def _exchange(self, connection: AsyncConnection, call: Call[T]) -> tuple[object, bool]:
        try:
            return await _send_and_read(connection, call), False
        except _RECONNECT_AFTER as error:
            await connection.disconnect(nowait=True)
            # As in ConnectionRunner: the current server may not be the one of this connection.
            fresh_try = isinstance(error, NOT_SERVING)
            return await self._retry(connection, call, error, counts=not fresh_try)

    async def _retry(
        self, connection: AsyncConnection, call: Call[T], error: Exception, *, counts: bool
    ) -> tuple[object, bool]:
        """As in ConnectionRunner: retry as the client's policy defines."""
        failures = [error] if counts else []
        resent = not isinstance(error, NOT_SERVING)

        async def attempt() -> object:
            if failures:
                raise failures.pop()
            return await _send_and_read(connection, call)

        async def clean_up(error: Exception) -> None:
            nonlocal resent
            resent = resent or not isinstance(error, NOT_SERVING)
            await connection.disconnect(nowait=True)

        reply = await connection.retry.call_with_retry(attempt, clean_up)
        return reply, resent


async def _send_and_read(connection: AsyncConnection, call: Call[Any]) -> object:
    if not connection.is_connected:
        await connection.connect()
    call.may_be_sent = True
    try:
        with closed_is_a_fault():
            await connection.send_packed_command(packed(call))
            try:
                return await _read(connection, call)
            except NoScriptError:
                await connection.send_packed_command(packed(call, with_text=True))
                return await _read(connection, call)
    except redis.ResponseError as error:
        raise not_serving(error) or error from None


async def _read(connection: AsyncConnection, call: Call[Any]) -> object:
    if call.wait is None:
        return await connection.read_response(disable_decoding=True)
    try:
        reply = await connection.read_response(disable_decoding=True)
    except redis.ResponseError:
        with contextlib.suppress(redis.ResponseError):
            await connection.read_response(disable_decoding=True)  # WAIT's
        raise
    return reply, await connection.read_response(disable_decoding=True)


async def within(deadline: Deadline | None, run: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own, and cancel that when the deadline has passed."""
    if deadline is None:
        return await run
    task = outcome_task(run)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=deadline.slice_s())
    finally:
        if task.cancel():
            keep(task)
    return task.result().get()


class AsyncCommandRunner:
    """Runs calls through the client's ``evalsha`` or, where a mock has none, ``eval``."""

    outlives_caller = False

    def __init__(self, client: Any) -> None:
        self._eval: Callable[..., Awaitable[object]] = client.eval
        self._evalsha: Callable[..., Awaitable[object]] | None = getattr(client, "evalsha", None)
        self._client = client

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        return await within(deadline, self._run(call))

    async def _run(self, call: Call[T]) -> T:
        try:
            return await self._result(call)
        except FAULTS as error:
            server = describe_server(self._client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error

    async def _result(self, call: Call[T]) -> T:
        return call.read(await self._reply(call))

    async def _reply(self, call: Call[T]) -> object:
        # As bytes: the client would encode text as its own settings say.
        arguments: tuple[bytes | int, ...] = (
            len(call.keys),
            *(key.encode() for key in call.keys),
            *(arg.encode() for arg in call.args),
        )
        call.may_be_sent = True
        if self._evalsha is not None:
            try:
                return await self._evalsha(call.script.sha, *arguments)
            except NoScriptError:
                pass
        return await self._eval(call.script.text, *arguments)

    async def close(self) -> None: ...


MAX_CALLS_OF_NODE: Final = 32
"""How many calls a node of a cluster gets at a time. Each takes a connection of its own."""


class AsyncClusterRunner(AsyncCommandRunner):
    """Runs calls through the client of a cluster."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: dict[str, asyncio.Semaphore] = {}
        """Of each node, by its name. One node that hangs does not hold the others up."""
        self._map = AsyncClusterMap(client)

    async def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            leave_other_loops(self._client)
            self._loop = loop
            self._slots = {}
            self._map = AsyncClusterMap(self._client)
        try:
            return await super().run(call, deadline)
        except NetworkTimeout:
            # At the deadline the call was cancelled: the client has noticed nothing. A call whose
            # caller has left may end after the backend was closed: then nothing may connect again.
            if deadline is not None and self._loop is loop:
                self._map.update_soon(call.keys[0])
            raise

    async def close(self) -> None:
        self._loop = None
        await self._map.close()

    def update_map_from_thread(self, name: str, moved: bool = False) -> None:  # noqa: ARG002
        """Let the client find the node that has this name now. May be called on any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._update_map, name)

    def _update_map(self, name: str) -> None:
        if self._loop is not None:  # else it was closed meanwhile
            self._map.update_soon(name)

    async def _result(self, call: Call[T]) -> T:
        # redis-py closes connections for a task that reads the map of nodes again.
        with closed_is_a_fault():
            return await self._result_of_client(call)

    async def _result_of_client(self, call: Call[T]) -> T:
        node = await self._node_of(call)  # if this fails, nothing was sent
        async with self._slots_of_node(node):
            if call.wait is not None:
                return call.read(await self._acknowledged_reply(call))
            if call.if_resent is None:
                return call.read(await self._reply(call))
            reply, resent = await self._reply_of_node(call)
            result = call.read(reply)
            return call.if_resent(reply, result) if resent else result

    def _slots_of_node(self, node: Any) -> asyncio.Semaphore:
        """For a call to wait here: redis-py refuses one for which a node has no connection."""
        slots = self._slots.get(node.name)
        if slots is None:
            connections = node.max_connections // 2  # the rest: the application
            limit = max(1, min(connections, MAX_CALLS_OF_NODE))
            slots = self._slots[node.name] = asyncio.Semaphore(limit)
        return slots

    async def _reply_of_node(self, call: Call[T]) -> tuple[object, bool]:
        """As ``ClusterRunner`` does it."""
        client, resent = self._client, False
        call.may_be_sent = True
        for attempts_left in reversed(range(CLUSTER_ATTEMPTS)):
            node = await self._node_of(call)
            try:
                try:
                    return await client.execute_command(
                        *encoded(evalsha(call)), target_nodes=node
                    ), resent
                except NoScriptError:
                    node = await self._node_of(call)
                    return await client.execute_command(
                        *encoded(evaluate(call)), target_nodes=node
                    ), resent
            except _CONNECTION_FAILURES:
                if not attempts_left:
                    raise
                resent = True
        raise AssertionError("unreachable")  # pragma: no cover

    async def _node_of(self, call: Call[T]) -> Any:
        """The node of a call, by a map that the client has refreshed if it has to.

        A node from before that may have left the map. A connection that is then opened to it is
        never closed: redis-py warns of an "Unclosed ClusterNode object".
        """
        await self._client.initialize()  # does nothing if the client knows its nodes
        try:
            return node_of(self._client, call.keys[0])
        except SlotNotCoveredError:  # the client's own methods raise KeyError
            await self._client.nodes_manager.initialize()
            return node_of(self._client, call.keys[0])

    async def _acknowledged_reply(self, call: Call[T]) -> tuple[object, object]:
        """As ``ClusterRunner`` does it."""
        call.may_be_sent = True
        for attempts_left in reversed(range(CLUSTER_ATTEMPTS)):
            node = await self._node_of(call)
            try:
                replies = await _exchange(node, evalsha(call), call)
                if isinstance(replies[0], NoScriptError):
                    node = await self._node_of(call)
                    replies = await _exchange(node, evaluate(call), call)
                return pair_of(replies)
            except (*_CONNECTION_FAILURES, *REDIRECTIONS):
                if not attempts_left:
                    raise
                await self._reply(call)
        raise AssertionError("unreachable")  # pragma: no cover


async def _exchange(node: Any, script: tuple[str | int, ...], call: Call[Any]) -> list[object]:
    """Send a script and WAIT on one connection of a cluster's node."""
    assert call.wait is not None
    sent = [PipelineCommand(0, *encoded(script)), PipelineCommand(1, *call.wait)]
    await node.execute_pipeline(sent)
    return [command.result for command in sent]


def async_runner(
    client: Any, pool: AsyncPool | None, acknowledgement: ReplicaAcknowledgement | None = None
) -> AsyncRunner:
    """The runner for a client: ``pool`` is its pool, if its connections are real sockets."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return AsyncClusterRunner(client)
    if pool is None:
        return AsyncCommandRunner(client)
    large = pool.max_connections >= LARGE_POOL
    if not (large and can_pipeline(pool)):
        return AsyncConnectionRunner(pool)
    plain = PipelinedRunner(pool)
    if acknowledgement is None:
        return plain
    return AcknowledgingRunner(plain, PipelinedRunner(pool, acknowledgement.wait))
