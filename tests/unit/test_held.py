"""A held lock, with a clock that the test sets: when it is lost, and who is told."""

from __future__ import annotations

import pytest

from syncguard import LockLost
from syncguard._lock import held as held_module
from syncguard._lock.handles import Grant
from syncguard._lock.held import Held
from syncguard._lock.release_after_block import Disposal

START, TTL = 1e15, 3_000


@pytest.fixture
def clock(monkeypatch):
    """Sets the time, in milliseconds after the request was sent."""

    def set_ms(after_ms):
        monkeypatch.setattr(held_module, "holder_clock_ms", lambda: START + after_ms)

    set_ms(0)
    return set_ms


def held(on_lost=None):
    return Held(Grant("A" * 22, "000000000000001", 0, "key", TTL, START, Disposal()), on_lost)


def test_a_lock_is_lost_at_its_deadline_and_not_before(clock):
    mine = held()
    clock(TTL - 1)
    assert not mine.lost
    mine.ensure_held()
    clock(TTL)
    assert mine.lost
    with pytest.raises(LockLost):
        mine.ensure_held()


def test_a_block_that_ended_before_the_deadline_was_not_lost(clock):
    mine = held()
    clock(TTL - 1)
    mine.end()
    clock(TTL)
    assert not mine.lost
    assert mine.ended_late is False


def test_a_block_that_ended_at_the_deadline_ended_late(clock):
    mine = held()
    clock(TTL)
    mine.end()
    assert mine.ended_late is True


@pytest.mark.usefixtures("clock")
def test_the_loss_is_told_once():
    told = []
    mine = held(told.append)
    callback, context = mine.lose()
    assert mine.lose() is None
    context.run(callback)
    assert told == [mine]


@pytest.mark.usefixtures("clock")
def test_nobody_is_told_of_a_loss_without_a_callback():
    mine = held()
    assert mine.lose() is None
    assert mine.lost
