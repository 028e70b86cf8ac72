"""Runs a call on a cluster, blocking: on the node of its names, also after that node has changed.

Without a deadline a call runs through the client, which has its own time-outs and retries. With one
it runs on a connection of its node, which obeys the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import redis
from redis.exceptions import NoScriptError, RedisClusterException, SlotNotCoveredError

from syncguard._backend.deadline import Deadline
from syncguard.errors import LockError, NetworkTimeout
from syncguard.redis._transport.closed_connection import closed_is_a_fault
from syncguard.redis._transport.cluster_map import ClusterMap
from syncguard.redis._transport.connections import (
    Pool,
    client_of_node,
    describe_server,
    discover_nodes,
    node_of,
    runner_pool,
)
from syncguard.redis._transport.error_codes import (
    FAULTS,
    NOT_SERVING,
    REDIRECTIONS,
    is_moving,
    is_redirection,
    lock_error,
)
from syncguard.redis._transport.runner import (
    CONNECTION_FAILURES,
    CommandRunner,
    ConnectionRunner,
    Runner,
)
from syncguard.redis.script_calls import Call

T = TypeVar("T")

CLUSTER_ATTEMPTS: Final = 4
"""As many as a client of a cluster makes by default."""


def evalsha(call: Call[T]) -> tuple[str | int, ...]:
    """The command that runs a script which the server has stored."""
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)


def evaluate(call: Call[T]) -> tuple[str | int, ...]:
    """The command that runs a script and stores it."""
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.args)


def encoded(command: tuple[str | int, ...]) -> tuple[str | int | bytes, ...]:
    """The command for the client's own methods, which would encode text as its settings say."""
    name, *words = command
    return name, *(word.encode() if isinstance(word, str) else word for word in words)


def pair_of(replies: Sequence[object]) -> tuple[object, object]:
    """The replies of the script and of WAIT. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies[0], replies[1]


class ClusterRunner(CommandRunner):
    """Runs calls through the client or, with a deadline, on connections of its nodes."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.map: Final = ClusterMap(client)

    def run(self, call: Call[T], deadline: Deadline | None = None) -> T:
        self.map.client_is_closed = False  # this connects it again
        if deadline is None or call.if_resent is not None:
            return super().run(call, deadline)
        deadline.left_s()
        try:
            self.map.discover(deadline)  # if this fails, nothing was sent
        except FAULTS as error:
            server = describe_server(self._client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error
        return self._run_on_node(call, deadline)

    def _run_on_node(self, call: Call[T], deadline: Deadline) -> T:
        """Run it on its node; if that has changed or does not answer, let the client find another.

        Sending a call twice is safe: every call is idempotent.
        """
        for attempts_left in reversed(range(CLUSTER_ATTEMPTS)):
            try:
                # Both are kept until the call has ended. If the client drops a node, this closes
                # the connections of the node, also those in use.
                kept = self._node_of(call)
                pool = runner_pool(kept[1])
                if pool is None:  # with client-side caching: not bounded
                    return super().run(call, deadline)
                # Keeps no connection: the client drops nodes, and nobody would close it.
                return ConnectionRunner(pool, keeps_one=False).run(call, deadline)
            except LockError as error:
                cause = error.context.cause
                if cause is None or not _may_have_changed(error, cause):
                    raise
                if is_moving(cause):
                    return super().run(call)  # this node answers; the client asks the other
                update = self.map.update(call.keys[0], moved=is_redirection(cause))
                if not attempts_left:
                    raise
                try:
                    update.wait(deadline)
                except NetworkTimeout:
                    raise error from cause
        raise AssertionError("unreachable")  # pragma: no cover

    def _node_of(self, call: Call[T]) -> tuple[object, object]:
        """The node of the call, by the client's map, and the client of that node."""
        client = self._client
        try:
            node = node_of(client, call.keys[0])
            return node, client_of_node(client, node)
        except FAULTS as error:
            server = describe_server(client)
            raise lock_error(error, server=server, key=call.key, lock_id=call.lock_id) from error

    def _result(self, call: Call[T]) -> T:
        discover_nodes(self._client)  # before may_be_sent: if this fails, nothing was sent
        try:
            node_of(self._client, call.keys[0])
        except SlotNotCoveredError:  # the client would never read its map again
            self._client.nodes_manager.initialize()
        with closed_is_a_fault():  # redis-py, if a node that it does not know is to be asked
            return self._result_of_client(call)

    def _result_of_client(self, call: Call[T]) -> T:
        if call.wait is not None:
            return call.read(self._acknowledged_reply(call))
        if call.if_resent is None:
            return call.read(self._reply(call))
        reply, resent = self._reply_of_node(call)
        result = call.read(reply)
        return call.if_resent(reply, result) if resent else result

    def _reply_of_node(self, call: Call[T]) -> tuple[object, bool]:
        """The reply, and whether the request was sent again after one without a reply.

        The client resends too, but does not tell. It does not resend to a node that it was given.
        """
        client, resent = self._client, False
        call.may_be_sent = True
        for attempts_left in reversed(range(CLUSTER_ATTEMPTS)):
            node = node_of(client, call.keys[0])
            try:
                try:
                    return client.execute_command(
                        *encoded(evalsha(call)), target_nodes=node
                    ), resent
                except NoScriptError:
                    return client.execute_command(
                        *encoded(evaluate(call)), target_nodes=node
                    ), resent
            except CONNECTION_FAILURES:
                if not attempts_left:
                    raise
                resent = True
        raise AssertionError("unreachable")  # pragma: no cover

    def _acknowledged_reply(self, call: Call[T]) -> tuple[object, object]:
        """The reply of the script, and that of a WAIT on the same connection.

        After a failure or a redirection the call also runs through the client, which then knows
        the nodes again. Then it is sent to its node once more: every call may be sent twice, and
        writes each time.
        """
        client = self._client
        call.may_be_sent = True
        for attempts_left in reversed(range(CLUSTER_ATTEMPTS)):
            node = node_of(client, call.keys[0])
            pipeline = client.get_redis_connection(node).pipeline(transaction=False)
            try:
                replies = self._exchange(pipeline, evalsha(call), call)
                if isinstance(replies[0], NoScriptError):
                    replies = self._exchange(pipeline, evaluate(call), call)
                return pair_of(replies)
            except (*CONNECTION_FAILURES, *REDIRECTIONS):
                if not attempts_left:
                    raise
                self._reply(call)
        raise AssertionError("unreachable")  # pragma: no cover

    @staticmethod
    def _exchange(pipeline: Any, script: tuple[str | int, ...], call: Call[Any]) -> list[object]:
        assert call.wait is not None
        pipeline.execute_command(*encoded(script))
        pipeline.execute_command(*call.wait)
        replies: list[object] = pipeline.execute(raise_on_error=False)
        return replies


def _may_have_changed(error: LockError, cause: BaseException) -> bool:
    """Whether another node may execute the request now."""
    if error.code not in ("ServiceUnavailable", "NetworkTimeout"):
        return False  # for example a pool at its limit, which is a ConnectionError too
    failures = (*CONNECTION_FAILURES, *NOT_SERVING, RedisClusterException)
    return isinstance(cause, failures) or is_redirection(cause)


def blocking_runner(client: Any, pool: Pool | None) -> Runner:
    """The runner for a client: ``pool`` is its pool, if its connections are real sockets."""
    if isinstance(client, redis.RedisCluster):
        return ClusterRunner(client)
    return CommandRunner(client) if pool is None else ConnectionRunner(pool)
