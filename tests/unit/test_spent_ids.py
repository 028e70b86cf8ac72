"""The ids of requests that got no reply: read while other threads change them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from syncguard.redis import spent_ids


@pytest.fixture(autouse=True)
def no_ids() -> Iterator[None]:
    spent_ids.clear()
    yield
    spent_ids.clear()


def test_the_ids_of_a_lock_are_sent_between_commas():
    spent_ids.add("one", "lock")
    spent_ids.add("two", "lock")
    spent_ids.add("three", "another lock")
    assert spent_ids.of_lock("lock") == ",one,two,"
    assert spent_ids.of_lock("a third lock") == ""


class Cycle:
    """Garbage that only the collector finds. It leaves more of its kind."""

    left = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Cycle.left -= 1
        spent_ids.add(f"later {Cycle.left}", "another lock")
        if Cycle.left > 0:
            Cycle()


def test_ids_may_be_added_while_they_are_read():
    """On 3.10 and 3.11 the collector, and so any code, may run inside ``list(dict.items())``."""
    for number in range(2_000):
        spent_ids.add(f"id {number}", "lock")
    Cycle.left = 1_000
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    gc.enable()
    try:
        Cycle()
        found = spent_ids.of_lock("lock")
    finally:
        gc.disable()
        gc.set_threshold(*threshold)
        Cycle.left = 0
        gc.collect()
    assert found.count(",") == 2_001
