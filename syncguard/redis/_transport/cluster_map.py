"""Lets a client of a cluster read its map of nodes again, on a background thread or in a task.

redis-py reads the map again if a command fails. A call with a deadline ends before a command of the
client does: if its node hangs and is replaced, the client never learns that. So a harmless command
for the same name is sent through the client, which may take as long as the client's time-outs say.
A backend does that at most once at a time for each node that failed, and for each slot that moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from redis.exceptions import SlotNotCoveredError

from syncguard._backend.deadline import Deadline
from syncguard._lock.background_tasks import keep
from syncguard._lock.background_threads import run_in_thread, start_ahead
from syncguard._lock.cancellation import GRACE_S, outcome_task
from syncguard.redis._transport.closed_connection import closed_is_a_fault
from syncguard.redis._transport.connections import (
    discover_nodes,
    is_discovered,
    node_of,
    slot_of,
    unlock_cluster_after_fork,
)
from syncguard.redis._transport.error_codes import FAULTS

_DISCOVERY: Final = "discovery"
_POLL_S: Final = 0.005


def _harmless(name: str) -> tuple[str | int | bytes, ...]:
    """A command for this name. A script, because a client may send other reads to replicas."""
    return "EVAL", "return 0", 1, name.encode()


def _label(client: Any, name: str, moved: bool) -> str:
    """What the update is for: a slot that moved, or the node that failed."""
    if moved:
        return f"slot {slot_of(client, name)}"  # redis-py corrects its map for this slot only
    with contextlib.suppress(*FAULTS):  # no node has this slot
        node = node_of(client, name)
        return "no node" if node is None else node.name
    return "no node"


class Update:
    """One reading of the map.

    No ``Event`` and no ``Future``: an exception that another thread sends to a waiting thread may
    leave their locks held, and all other threads would wait for ever.
    """

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = False
        self.error: Exception | None = None

    def wait(self, deadline: Deadline) -> None:
        """Wait until it has ended. Raises NetworkTimeout at the deadline, Aborted on its signal."""
        while not self.ended:
            time.sleep(min(_POLL_S, deadline.left_s()))


class ClusterMap:
    """The map of a blocking client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: dict[tuple[int, str], Update] = {}
        """By process, because a forked child has none of the threads; and by label."""
        self.client_is_closed = False
        """Set by a backend that has closed its own client: an update that is still running, or one
        for an undo, connects it again, and then closes it again."""
        unlock_cluster_after_fork(client)

    def discover(self, deadline: Deadline) -> None:
        """Ask for the nodes, if the client connects on first use. Raises errors of redis-py."""
        if not is_discovered(self._client):
            reading = self._begin_discovery()
            reading.wait(deadline)
            if reading.error is not None:
                raise reading.error

    def require_nodes(self) -> None:
        """Raise ConnectionError if the nodes are not known yet, and begin to ask. Does not wait."""
        if not is_discovered(self._client):
            self._begin_discovery()
            raise redis.ConnectionError("the nodes of the cluster are not known yet")

    def _begin_discovery(self) -> Update:
        return self._begin(_DISCOVERY, lambda: discover_nodes(self._client))

    def update(self, name: str, moved: bool = False) -> Update:
        """Begin to read the map again, because of a call for this name. Does not wait."""

        def update() -> None:
            try:
                self._client.execute_command(*_harmless(name))
            except SlotNotCoveredError:  # then the client asks no node
                self._client.nodes_manager.initialize()

        return self._begin(_label(self._client, name, moved), update)

    def _begin(self, label: str, job: Callable[[], None]) -> Update:
        place, fresh = (os.getpid(), label), Update()

        def end() -> None:
            if self._running.get(place) is fresh:  # first: who sees the end may begin another
                del self._running[place]
            fresh.ended = True

        def run() -> None:
            try:
                job()
            except Exception as error:
                fresh.error = error
            finally:  # also after SystemExit
                end()
                if self.client_is_closed:
                    self._client.close()

        try:
            update = self._running.setdefault(place, fresh)
            if update is fresh:
                run_in_thread(run)
            else:
                start_ahead()  # in case no thread was available for that one
        except BaseException as error:  # no thread is available, or an interrupt
            end()
            if not isinstance(error, RuntimeError):
                raise
            return fresh
        return update


class AsyncClusterMap:
    """The map of an asyncio client. Used on its event loop only."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: dict[str, asyncio.Task[Any]] = {}

    def update_soon(self, name: str) -> None:
        """Begin to read the map again, because of a call for this name."""
        # By slot: a node that failed may have several of our slots, but few.
        label = _label(self._client, name, moved=True)
        if label not in self._running:
            task = outcome_task(self._update(name))
            self._running[label] = task
            task.add_done_callback(lambda _: self._running.pop(label, None))
            keep(task)

    async def close(self) -> None:
        """End the updates: they would connect the client again after it was closed."""
        loop = asyncio.get_running_loop()
        running = {task for task in self._running.values() if task.get_loop() is loop}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=GRACE_S)

    async def _update(self, name: str) -> None:
        with closed_is_a_fault():
            # First: a client that does not know its nodes would not close those that we find.
            await self._client.initialize()
            try:
                node_of(self._client, name)  # the client's own methods raise KeyError
                await self._client.execute_command(*_harmless(name))
            except SlotNotCoveredError:  # then the client asks no node
                await self._client.nodes_manager.initialize()
