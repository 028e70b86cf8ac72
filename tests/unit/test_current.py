"""The stack of blocks that hold locks, and which code counts as the same code."""

from __future__ import annotations

import asyncio
import sys
from threading import get_ident

import greenlet
import pytest

from syncguard import current_lock
from syncguard._lock.handles import Grant
from syncguard._lock.held import Held
from syncguard._lock.release_after_block import Disposal
from syncguard.clock import holder_clock_ms
from syncguard.current import Block, block_here, innermost, running_code

BACKEND = object()


@pytest.fixture(autouse=True)
def empty_stack():
    token = innermost.set(None)
    yield
    innermost.reset(token)


@pytest.fixture(params=["greenlet is imported", "greenlet is not imported"])
def with_or_without_greenlet(request, monkeypatch):
    if request.param == "greenlet is not imported":
        monkeypatch.delitem(sys.modules, "greenlet")


def enter(key="k", reentered=None):
    """Enter a block, as lock() does."""
    grant = Grant("A" * 22, "000000000000001", 0, key, 60_000, holder_clock_ms(), Disposal())
    block = Block(BACKEND, key, Held(grant), reentered)
    innermost.set(block)
    return block


def in_greenlet(function):
    return greenlet.greenlet(function).switch()


def test_a_block_that_was_left_is_not_held_although_its_lock_is():
    block = enter()
    assert block.is_held
    block.leave()
    assert block.is_left
    assert not block.is_held
    assert block.held.ended_late is None


def test_a_block_that_entered_a_lock_again_is_held_as_long_as_the_outer_block():
    outer = enter()
    inner = enter(reentered=outer)
    assert inner.is_held
    outer.held.end()
    assert not inner.is_held


def test_leaving_takes_the_block_from_the_stack():
    outer, inner = enter("a"), enter("b")
    inner.leave()
    assert innermost.get() is outer
    outer.leave()
    assert innermost.get() is None


def test_blocks_may_be_left_in_any_order():
    first, second, third = enter("a"), enter("b"), enter("c")
    second.leave()
    assert current_lock() is third.held
    assert third.outer is first
    third.leave()
    assert innermost.get() is first
    fourth = enter("d")
    first.leave()
    assert fourth.outer is None
    fourth.leave()
    assert innermost.get() is None


@pytest.mark.usefixtures("with_or_without_greenlet")
def test_code_without_a_task_or_greenlet_is_its_thread():
    assert running_code() == get_ident()
    assert block_here(BACKEND, "k") is None
    block = enter()
    assert block_here(BACKEND, "k") is block


@pytest.mark.asyncio
@pytest.mark.usefixtures("with_or_without_greenlet")
async def test_code_in_asyncio_is_its_task():
    assert running_code() is asyncio.current_task()
    block = enter()
    assert block_here(BACKEND, "k") is block

    async def in_another_task():
        assert current_lock() is block.held
        return block_here(BACKEND, "k")

    assert await asyncio.create_task(in_another_task()) is None


def test_code_in_a_greenlet_is_the_greenlet():
    assert in_greenlet(lambda: running_code() is greenlet.getcurrent())

    def enter_and_ask():
        block = enter()
        return block_here(BACKEND, "k") is block

    assert in_greenlet(enter_and_ask)


def test_a_greenlet_does_not_enter_the_block_of_its_thread_again():
    block = enter()

    def ask():
        innermost.set(block)  # as in a context that was copied
        return block_here(BACKEND, "k")

    assert in_greenlet(ask) is None
