"""Fail a test that leaves a socket, client, file, process or loop open.

Without this, the garbage collector finds the object during a later test, and that test fails.
Which one depends on the order of the tests. This plugin collects after every test, and reports
what was still open as an error of the test that has just ended.

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
"""The generation of the objects that were created since the last test ended."""


def pytest_collection_finish() -> None:
    # The objects of the imported modules are never garbage. With automatic collection off, all
    # objects of a test are young when it ends. So a collection takes 1 or 2 ms instead of 100.
    # Also, a Celery result is never collected while redis-py 5 subscribes to another: a deadlock.
    gc.collect()
    gc.freeze()
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    getattr(item, "funcargs", {}).clear()  # the last references that pytest keeps
    # Objects of module fixtures are older than the last test of the module.
    ends_a_module = nextitem is None or nextitem.path != item.path
    left = open_objects_in_garbage(_OLD if ends_a_module else _YOUNG)
    if left:
        raise LeftOpenError("\n".join(["the test left open:", *left]))
    return result


def open_objects_in_garbage(generation: int = _OLD) -> list[str]:
    """Collect the garbage, and describe what was still open in it."""
    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always", ResourceWarning)
        patch.setattr(redis.Redis, "__del__", _close_and_warn)
        gc.collect(generation)
    return [str(warning.message) for warning in caught if warning.category is ResourceWarning]


def _close_and_warn(client: redis.Redis) -> None:
    """Warn of an unclosed client: redis-py itself closes it without a warning."""
    pool = getattr(client, "connection_pool", None)
    connections = [
        *getattr(pool, "_available_connections", ()),
        *getattr(pool, "_in_use_connections", ()),
    ]
    is_open = any(getattr(connection, "_sock", None) for connection in connections)
    if is_open and client.auto_close_connection_pool:
        warnings.warn(f"unclosed client {client!r}", ResourceWarning, stacklevel=1)
    client.close()
