"""A blocking lock on the thread of an event loop is refused, as Django's ORM refuses a query."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpResponse
from django.test import AsyncRequestFactory

from syncguard_django import alock, lock, locked


def blocks() -> None:
    with lock("invoice:42"):
        pass


async def in_a_loop(function):
    return function()


def test_a_blocking_lock_in_an_async_view_is_refused_before_anything_is_sent(site_redis):
    async def view(_request):
        with lock("invoice:42"):
            return HttpResponse("settled")

    before = site_redis.commands_processed()
    with pytest.raises(SynchronousOnlyOperation, match="use `async with alock"):
        asyncio.run(view(AsyncRequestFactory().get("/")))
    assert site_redis.commands_processed() == before


def test_a_blocking_locked_function_is_refused_too(backend):
    @locked(key="invoice:42")
    def settle():
        return "settled"

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(in_a_loop(settle))
    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(in_a_loop(lock("invoice:42")(settle)))
    assert not backend.is_locked("invoice:42")


def test_in_a_thread_and_with_alock_it_works(configure):
    configure()

    async def view():
        await sync_to_async(blocks)()
        async with alock("invoice:42") as held:
            return held.fence

    assert asyncio.run(view()) == "000000000000002"


def test_django_allow_async_unsafe_is_respected(backend, monkeypatch):
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    asyncio.run(in_a_loop(blocks))
    assert backend.acquire("invoice:42").fence == "000000000000002"


def test_leaving_the_block_is_never_refused(backend):
    taken = lock("invoice:42")
    taken.__enter__()
    asyncio.run(in_a_loop(lambda: taken.__exit__(None, None, None)))
    assert not backend.is_locked("invoice:42")
