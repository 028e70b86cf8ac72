"""A lock decorates only what it covers: no generator, and no coroutine of the wrong kind."""

from __future__ import annotations

import asyncio
from functools import partial, wraps

import pytest

from syncguard import LockError, aio, lock
from syncguard._lock.decorated_function import check_decorated
from syncguard.memory import AsyncMemoryBackend, MemoryBackend


def plain(): ...


async def coroutine(): ...


def generator():
    yield


async def async_generator():
    yield


@pytest.mark.parametrize("wants_async", [False, True])
@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_cannot_be_decorated(function, wants_async):
    with pytest.raises(LockError, match="inside it") as caught:
        check_decorated(function, wants_async=wants_async)
    assert caught.value.code == "InvalidArgument"


@pytest.mark.parametrize(
    ("function", "wants_async", "hint"),
    [(coroutine, False, "syncguard.aio.lock"), (plain, True, "syncguard.lock")],
)
def test_the_wrong_kind_of_function_is_refused_with_a_hint_at_the_right_lock(
    function, wants_async, hint
):
    with pytest.raises(LockError, match=hint):
        check_decorated(function, wants_async=wants_async)


def test_the_right_kind_of_function_can_be_decorated():
    check_decorated(plain, wants_async=False)
    check_decorated(coroutine, wants_async=True)


class Calls:
    """Kinds of ``__call__``."""

    async def coroutine(self): ...

    def generator(self):
        yield

    async def async_generator(self):
        yield

    def plain(self): ...


def called_as(name):
    return type("Job", (), {"__call__": getattr(Calls, name)})()


@pytest.mark.parametrize("wants_async", [False, True])
@pytest.mark.parametrize("name", ["generator", "async_generator"])
def test_an_object_whose_call_is_a_generator_cannot_be_decorated(name, wants_async):
    for function in (called_as(name), partial(called_as(name))):
        with pytest.raises(LockError, match="inside it"):
            check_decorated(function, wants_async=wants_async)


@pytest.mark.parametrize(
    ("name", "wants_async", "hint"),
    [("coroutine", False, "syncguard.aio.lock"), ("plain", True, "syncguard.lock")],
)
def test_an_object_is_checked_by_its_call_method(name, wants_async, hint):
    for function in (called_as(name), partial(called_as(name))):
        with pytest.raises(LockError, match=hint):
            check_decorated(function, wants_async=wants_async)
        check_decorated(function, wants_async=not wants_async)


def logged(function):
    """A common plain decorator: it hides the kind of function that it wraps."""

    @wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def test_an_async_def_under_a_plain_decorator_is_refused_with_a_hint_at_the_order():
    with pytest.raises(LockError, match=r"put syncguard\.aio\.lock below"):
        check_decorated(logged(coroutine), wants_async=True)


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (coroutine, "syncguard.aio.lock"),
        (generator, "inside it"),
        (async_generator, "inside it"),
    ],
)
def test_a_coroutine_or_generator_that_a_plain_decorator_returns_is_refused(function, hint):
    backend = MemoryBackend()
    decorated = lock(backend, "k")(logged(function))
    with pytest.raises(LockError, match=hint) as caught:
        decorated()
    assert caught.value.code == "InvalidArgument"
    assert not backend.is_locked("k")


@pytest.mark.parametrize(
    ("function", "hint"),
    [(coroutine, "await it"), (generator, "inside it"), (async_generator, "inside it")],
)
def test_a_coroutine_or_generator_that_an_async_decorator_returns_is_refused(function, hint):
    @wraps(function)
    async def wrapper():
        return function()

    async def run():
        backend = AsyncMemoryBackend()
        with pytest.raises(LockError, match=hint) as caught:
            await aio.lock(backend, "k")(wrapper)()
        assert caught.value.code == "InvalidArgument"
        assert not await backend.is_locked("k")

    asyncio.run(run())


def test_a_plain_function_that_runs_the_coroutine_it_wraps_can_be_decorated():
    backend = MemoryBackend()

    async def is_locked():
        return backend.is_locked("k")

    @wraps(is_locked)
    def to_its_end():  # as asgiref's async_to_sync does
        return asyncio.run(is_locked())

    assert lock(backend, "k")(to_its_end)() is True


def test_an_async_function_may_wrap_a_plain_one():
    async def run():
        @wraps(plain)
        async def wrapper():
            return 7

        assert await aio.lock(AsyncMemoryBackend(), "k")(wrapper)() == 7

    asyncio.run(run())
