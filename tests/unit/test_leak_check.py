"""The search for leaks after each test finds each kind of them."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from leak_check import LeftOpenError, found_open_by_the_collector, pytest_runtest_teardown


class Knot:
    """Refers to itself: only the collector frees it, and what it has."""

    def __init__(self, thing: object) -> None:
        self.thing = thing
        self.itself = self


def socket_left_open(_server):
    Knot(socket.socket())


def file_left_open(_server):
    Knot(Path(__file__).open())  # noqa: SIM115 - that is the point


def loop_left_open(_server):
    Knot(asyncio.new_event_loop())


def client_left_open(server):
    client = server.client()
    client.ping()
    Knot(client)


LEAKS = [socket_left_open, file_left_open, loop_left_open, client_left_open]


@pytest.mark.parametrize("leave", LEAKS)
def test_what_is_left_open_is_found(leave, syncguard_redis):
    assert found_open_by_the_collector() == []
    leave(syncguard_redis)
    (first, *_) = found_open_by_the_collector()
    assert first.startswith("unclosed")


def test_a_client_that_was_closed_is_no_leak(syncguard_redis):
    with syncguard_redis.client() as client:
        client.ping()
        Knot(client)
    del client
    assert found_open_by_the_collector() == []


@pytest.mark.parametrize("is_last_of_its_module", [True, False])
def test_the_test_that_left_it_is_the_one_that_fails(
    request, syncguard_redis, is_last_of_its_module
):
    client_left_open(syncguard_redis)
    node = request.node
    teardown = pytest_runtest_teardown(node, None if is_last_of_its_module else node)
    next(teardown)
    with pytest.raises(LeftOpenError, match="unclosed client"):
        next(teardown)
