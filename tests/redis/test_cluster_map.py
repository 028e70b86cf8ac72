"""The map of a cluster is read again by one harmless command at a time, whatever ends it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from redis.crc import key_slot
from redis.exceptions import SlotNotCoveredError
from wait_until import wait_until

from syncguard import Aborted, NetworkTimeout
from syncguard._backend.deadline import Deadline
from syncguard.redis._transport import cluster_map
from syncguard.redis._transport.cluster_map import AsyncClusterMap, ClusterMap

SOON = 60_000


class Client:
    """A client whose commands do what the test says. A real one cannot be told how to fail."""

    def __init__(self, command=lambda: None):
        self.commands = []
        self.readings = 0
        self._command = command
        self.nodes_manager = SimpleNamespace(initialize=self._initialize, nodes_cache={})

    def _initialize(self):
        self.readings += 1

    def execute_command(self, *command):
        self.commands.append(command)
        self._command()

    def get_node_from_key(self, name):
        return SimpleNamespace(name=f"node {name[:1]}")

    def keyslot(self, name):
        return key_slot(name)

    def close(self):
        self.commands.append("close")


@pytest.fixture
def held_back():
    """A command that takes until the event is set."""
    go_on = threading.Event()
    yield go_on
    go_on.set()


def fail_with(error):
    def fail():
        raise error

    return fail


def test_a_harmless_script_for_the_name_is_sent_through_the_client():
    client = Client()
    ClusterMap(client).update("a1").wait(Deadline.after(SOON))
    assert client.commands == [("EVAL", "return 0", 1, b"a1")]


def test_an_update_for_a_node_that_failed_serves_all_its_names(held_back):
    client = Client(held_back.wait)
    nodes = ClusterMap(client)
    first = nodes.update("a1")
    assert nodes.update("a2") is first
    assert nodes.update("b1") is not first
    held_back.set()
    first.wait(Deadline.after(SOON))
    wait_until(lambda: nodes._running == {})
    assert nodes.update("a2") is not first


def test_an_update_for_a_slot_that_moved_serves_this_slot_only(held_back):
    nodes = ClusterMap(Client(held_back.wait))
    first = nodes.update("a1", moved=True)
    assert nodes.update("a1", moved=True) is first
    assert nodes.update("a2", moved=True) is not first


def test_the_map_is_read_if_no_node_has_the_slot():
    client = Client(fail_with(SlotNotCoveredError("none")))
    ClusterMap(client).update("a1").wait(Deadline.after(SOON))
    assert client.readings == 1


@pytest.mark.parametrize("error", [ValueError("any"), SystemExit()])
def test_an_update_that_fails_has_ended(error):
    nodes = ClusterMap(Client(fail_with(error)))
    nodes.update("a1").wait(Deadline.after(SOON))
    assert nodes._running == {}


@pytest.mark.parametrize("error", [RuntimeError("no thread"), KeyboardInterrupt()])
def test_an_update_that_cannot_begin_has_ended(monkeypatch, error):
    monkeypatch.setattr(cluster_map, "run_in_thread", lambda _job: fail_with(error)())
    nodes = ClusterMap(Client())
    if isinstance(error, RuntimeError):
        assert nodes.update("a1").ended
    else:
        with pytest.raises(KeyboardInterrupt):
            nodes.update("a1")
    assert nodes._running == {}


def test_an_update_that_ends_after_the_client_was_closed_closes_it_again(held_back):
    client = Client(held_back.wait)
    nodes = ClusterMap(client)
    nodes.update("a1")
    wait_until(lambda: client.commands)
    nodes.client_is_closed = True
    assert client.commands[-1] != "close"
    held_back.set()
    wait_until(lambda: client.commands[-1] == "close")


def test_asyncio_closing_ends_all_updates_at_once_and_can_be_cancelled(monkeypatch):
    async def main():
        never = asyncio.Event()
        cancelled = []

        class Stubborn(Client):
            async def initialize(self): ...

            async def execute_command(self, *command):
                while not never.is_set():
                    try:
                        await never.wait()
                    except asyncio.CancelledError:
                        cancelled.append(command)

        nodes = AsyncClusterMap(Stubborn())
        for name in "abc":
            nodes.update_soon(name)
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(nodes.close())
        while len(cancelled) < 3:
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        never.set()

    monkeypatch.setattr(cluster_map, "GRACE_S", SOON)
    asyncio.run(asyncio.wait_for(main(), 120))


def test_waiting_for_an_update_ends_at_the_deadline_or_by_its_signal(held_back):
    update = ClusterMap(Client(held_back.wait)).update("a1")
    with pytest.raises(NetworkTimeout):
        update.wait(Deadline.after(20))
    signal = threading.Event()
    signal.set()
    with pytest.raises(Aborted):
        update.wait(Deadline.after(SOON, signal))
