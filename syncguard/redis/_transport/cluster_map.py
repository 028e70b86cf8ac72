"""Lets a client of a cluster read its map of nodes again, on a background thread or in a task.

redis-py reads the map again if a command fails. A call with a deadline ends before a command of the
client does: if its node hangs and is replaced, the client never learns that. So a harmless command
for the same name is sent through the client, which may take as long as the client's time-outs say.
At most one at a time for each node.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from collections.abc import Callable
from typing import Any, Final

from syncguard._backend.deadline import Deadline
from syncguard._lock.background_tasks import keep
from syncguard._lock.background_threads import run_in_thread
from syncguard.redis._transport.connections import discover_nodes, is_discovered
from syncguard.redis._transport.error_codes import FAULTS

Update = concurrent.futures.Future[None]

_DISCOVERY: Final = "discovery"


def _harmless(name: str) -> tuple[str | int | bytes, ...]:
    """A command for this name. A script, because a client may send other reads to replicas."""
    return "EVAL", "return 0", 1, name.encode()


def _node_name(client: Any, name: str) -> str:
    with contextlib.suppress(*FAULTS):  # no node has this slot
        node = client.get_node_from_key(name)
        return "" if node is None else node.name
    return ""


class ClusterMap:
    """The map of a blocking client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: dict[tuple[int, str], Update] = {}
        """By process, because a forked child has none of the threads; and by node."""

    def discover(self, deadline: Deadline) -> None:
        """Ask for the nodes, if the client connects on first use. Raises errors of redis-py."""
        if not is_discovered(self._client):
            reading = self._begin(_DISCOVERY, lambda: discover_nodes(self._client))
            wait_for(reading, deadline)
            reading.result()

    def update(self, name: str) -> Update:
        """Begin to read the map again, because of a call for this name. Does not wait."""

        def update() -> None:
            with contextlib.suppress(*FAULTS):
                self._client.execute_command(*_harmless(name))

        return self._begin(_node_name(self._client, name), update)

    def _begin(self, label: str, job: Callable[[], None]) -> Update:
        place = os.getpid(), label
        fresh = Update()
        update = self._running.setdefault(place, fresh)
        if update is not fresh:
            return update

        def run() -> None:
            try:
                job()
            except Exception as error:
                self._running.pop(place, None)
                fresh.set_exception(error)
            else:
                self._running.pop(place, None)
                fresh.set_result(None)

        try:
            run_in_thread(run)
        except BaseException as error:  # no thread is available, or an interrupt
            self._running.pop(place, None)
            if not isinstance(error, RuntimeError):
                raise
            fresh.set_result(None)
        return fresh


def wait_for(update: Update, deadline: Deadline) -> None:
    """Wait until it has ended. Raises NetworkTimeout at the deadline, Aborted on its signal."""
    while not update.done():
        concurrent.futures.wait((update,), deadline.slice_s())


class AsyncClusterMap:
    """The map of an asyncio client. Used on its event loop only."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: set[str] = set()

    def update_soon(self, name: str) -> None:
        """Begin to read the map again, because of a call for this name."""
        node = _node_name(self._client, name)

        async def update() -> None:
            try:
                with contextlib.suppress(*FAULTS, AttributeError):  # see closed_connection
                    await self._client.execute_command(*_harmless(name))
            finally:
                self._running.discard(node)

        if node not in self._running:
            self._running.add(node)
            keep(asyncio.get_running_loop().create_task(update()))
