"""The leak check after each test finds each kind of leak."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from leak_check import LeftOpenError, open_objects_in_garbage, pytest_runtest_teardown


class Cycle:
    """Refers to itself: only the garbage collector frees it and what it refers to."""

    def __init__(self, thing: object) -> None:
        self.thing = thing
        self.itself = self


def socket_left_open(_server):
    Cycle(socket.socket())


def file_left_open(_server):
    Cycle(Path(__file__).open())  # noqa: SIM115 - left open on purpose


def loop_left_open(_server):
    Cycle(asyncio.new_event_loop())


def client_left_open(server):
    client = server.client()
    client.ping()
    Cycle(client)


LEAKS = [socket_left_open, file_left_open, loop_left_open, client_left_open]


@pytest.mark.parametrize("leave", LEAKS)
def test_each_kind_of_leak_is_found(leave, syncguard_redis):
    assert open_objects_in_garbage() == []
    leave(syncguard_redis)
    (first, *_) = open_objects_in_garbage()
    assert first.startswith("unclosed")


def test_a_client_that_was_closed_is_no_leak(syncguard_redis):
    with syncguard_redis.client() as client:
        client.ping()
        Cycle(client)
    del client
    assert open_objects_in_garbage() == []


@pytest.mark.parametrize("is_last_of_its_module", [True, False])
def test_the_test_that_leaked_fails(request, syncguard_redis, is_last_of_its_module):
    client_left_open(syncguard_redis)
    node = request.node
    teardown = pytest_runtest_teardown(node, None if is_last_of_its_module else node)
    next(teardown)
    with pytest.raises(LeftOpenError, match="unclosed client"):
        next(teardown)
