"""A test that leaves an open socket, client, file, process or loop to the collector fails itself.

Without this, the collector finds the object during some later test, and that one fails. Which one
depends on the order of the tests. Here every test is followed by a collection; what that finds
open is reported as an error of the test that has just ended.

``conftest`` registers this module as a plugin of pytest.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Generator
from typing import Final

import pytest
import redis


class LeftOpenError(AssertionError):
    """The test left something open."""


_OLD: Final = 2
_YOUNG: Final = 1
"""The generation that holds what was made since the last test ended."""


def pytest_collection_finish() -> None:
    # The objects of the imported modules are never garbage, and with the automatic collections off,
    # all that a test makes is young when it ends. So a collection visits little, and takes a
    # millisecond or two instead of a hundred: CI can pay that after each test. Nor is a result of
    # Celery's collected while redis-py 5 subscribes to another, which would wait for itself.
    gc.collect()
    gc.freeze()
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    getattr(item, "funcargs", {}).clear()  # the last references that pytest keeps for a test
    # What fixtures of a module made is older than its last test.
    ends_a_module = nextitem is None or nextitem.path != item.path
    left = found_open_by_the_collector(_OLD if ends_a_module else _YOUNG)
    if left:
        raise LeftOpenError("\n".join(["the test left open:", *left]))
    return result


def found_open_by_the_collector(generation: int = _OLD) -> list[str]:
    """Collect the garbage, and describe what was still open in it."""
    with warnings.catch_warnings(record=True) as noted, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always", ResourceWarning)
        patch.setattr(redis.Redis, "__del__", _close_and_warn)
        gc.collect(generation)
    return [str(note.message) for note in noted if note.category is ResourceWarning]


def _close_and_warn(client: redis.Redis) -> None:
    """redis-py closes a forgotten client without a word, unless its sockets were found first."""
    pool = getattr(client, "connection_pool", None)
    connections = [
        *getattr(pool, "_available_connections", ()),
        *getattr(pool, "_in_use_connections", ()),
    ]
    is_open = any(getattr(connection, "_sock", None) for connection in connections)
    if is_open and client.auto_close_connection_pool:
        warnings.warn(f"unclosed client {client!r}", ResourceWarning, stacklevel=1)
    client.close()
