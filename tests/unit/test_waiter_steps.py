"""What a waiter does in each step: whether it joins, rings, sleeps, and what it leaves behind.

The listener and the backend only record, so nothing here waits. All of it blocking and asyncio.
"""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from syncguard import LockError
from syncguard.backend import Refusal
from syncguard.redis import waiter, waiter_async
from syncguard.redis.script_calls import Calls
from syncguard.redis.waiter import MIN_LISTEN_MS, RedisWaiter
from syncguard.redis.waiter_async import AsyncRedisWaiter

CALLS = Calls()
NOW = 100.0
GRANTED = object()


class StoppedError(Exception):
    """Ends a wait or an attempt from outside."""


class Listener:
    bell = "bell"

    def __init__(self):
        self.wakes = False
        self.needs_bell = False
        self.fails = False
        self.places = []
        self.waited_until = []
        self.left = []
        """Of each waiter that left: whether it has a wake-up, whether it has the lock."""

    def join(self, place):
        place.is_listed = True
        self.places.append(place)
        return self.needs_bell

    def wait(self, place, deadline, _signal):
        assert place is self.places[-1]
        self.waited_until.append(deadline)
        if self.fails:
            raise StoppedError
        return self.wakes

    def leave(self, place, *, has_wake_up, acquired):
        assert place is self.places[-1]
        self.left.append((has_wake_up, acquired))


class AsyncListener(Listener):
    async def wait(self, *arguments):
        return super().wait(*arguments)

    async def leave(self, *arguments, **named):
        super().leave(*arguments, **named)


class Backend:
    def __init__(self):
        self.answer = Refusal()
        self.fails = False
        self.lock_ids = []
        self.rung = []
        self.undone = []

    def acquire_call(self, key, ttl_ms, holder, wait_ms):
        call = CALLS.acquire(key, ttl_ms, holder, wait_ms=wait_ms)
        self.lock_ids.append(call.lock_id)
        return call

    def run_acquire(self, _call, _ttl_ms, _deadline):
        if self.fails:
            raise StoppedError
        return self.answer

    def pass_on_call(self, key):
        return CALLS.pass_on(key)

    def ring(self, bell, _deadline):
        self.rung.append(bell)

    def undo(self, lock_id):
        self.undone.append(lock_id)


class AsyncBackend(Backend):
    async def attempt(self, _key, ttl_ms, _holder, _wait_ms, deadline):
        return self.run_acquire(None, ttl_ms, deadline)

    async def ring(self, bell):
        self.rung.append(bell)


class Scene:
    """A waiter, its backend, its listener, and how long it has slept."""

    def __init__(self, waiter_type, backend, listener):
        self.backend = backend
        self.listener = listener
        self.slept_ms = []
        self.waiter = waiter_type(backend, lambda _names: self.listener, CALLS.names.of("k"))

    def attempt(self):
        return self._run(self.waiter.attempt(1_000, None, 40_000))

    def wait(self, ms=2_000, signal=None):
        return self._run(self.waiter.wait(ms, signal))

    def close(self):
        self._run(self.waiter.close())

    def _run(self, result):
        return asyncio.run(result) if asyncio.iscoroutine(result) else result


@pytest.fixture(params=["blocking", "asyncio"])
def scene(request, monkeypatch):
    if request.param == "blocking":
        made = Scene(RedisWaiter, Backend(), Listener())
    else:
        made = Scene(AsyncRedisWaiter, AsyncBackend(), AsyncListener())

    def sleep(ms, _signal):
        made.slept_ms.append(ms)

    async def sleep_async(ms, _signal):
        made.slept_ms.append(ms)

    clock = SimpleNamespace(monotonic=lambda: NOW)
    monkeypatch.setattr(waiter, "time", clock)
    monkeypatch.setattr(waiter_async, "time", clock)
    monkeypatch.setattr(waiter, "sleep", sleep)
    monkeypatch.setattr(waiter_async, "sleep_async", sleep_async)
    return made


# -- waiting ----------------------------------------------------------------------------------


def test_a_waiter_waits_at_the_listener_until_its_time_is_over(scene):
    assert scene.wait(2_000) is False
    assert scene.listener.waited_until == [NOW + 2]
    assert scene.slept_ms == []


def test_a_waiter_that_was_not_woken_keeps_its_place(scene):
    scene.wait()
    scene.wait()
    first, second = scene.listener.places
    assert first is second
    assert first.is_listed
    assert scene.listener.left == []


def test_a_wake_up_ends_the_wait_and_is_used(scene):
    scene.listener.wakes = True
    assert scene.wait() is True
    assert not scene.listener.places[0].is_listed, "the next wait needs another wake-up"


@pytest.mark.parametrize("needs_bell", [True, False])
def test_the_bell_is_rung_if_the_listener_asks_for_it(scene, needs_bell):
    scene.listener.needs_bell = needs_bell
    scene.wait()
    assert scene.backend.rung == (["bell"] if needs_bell else [])


def test_for_less_than_ten_milliseconds_a_waiter_only_sleeps(scene):
    assert MIN_LISTEN_MS == 10
    assert scene.wait(9.5) is False
    assert scene.slept_ms == [9.5]
    assert scene.listener.places == []
    scene.wait(10)
    assert scene.slept_ms == [9.5]
    assert scene.listener.waited_until == [NOW + 0.01]


def test_a_waiter_that_has_a_place_waits_there_for_a_short_time_too(scene):
    scene.wait(2_000)
    scene.wait(1)
    assert scene.listener.waited_until == [NOW + 2, NOW + 0.001]
    assert scene.slept_ms == []


def test_without_a_listener_a_waiter_only_sleeps(scene):
    scene.listener = None
    assert scene.wait(2_000) is False
    assert scene.slept_ms == [2_000]


def test_a_set_signal_aborts_before_the_waiter_joins_or_sleeps(scene):
    signal = threading.Event()
    signal.set()
    for ms in (1, 2_000):
        with pytest.raises(LockError) as caught:
            scene.wait(ms, signal)
        assert caught.value.code == "Aborted"
    assert scene.listener.places == scene.slept_ms == []


def test_if_the_lock_has_moved_to_another_node_the_waiter_moves_to_its_listener(scene):
    scene.wait()
    old, scene.listener = scene.listener, type(scene.listener)()
    scene.wait()
    assert old.left == [(False, False)]
    assert len(old.waited_until) == len(scene.listener.waited_until) == 1


def test_if_the_other_node_has_no_listener_the_waiter_leaves_and_sleeps(scene):
    scene.wait()
    old, scene.listener = scene.listener, None
    scene.wait(2_000)
    assert old.left == [(False, False)]
    assert scene.slept_ms == [2_000]


def test_asyncio_a_waiter_that_is_cancelled_while_it_moves_leaves_completely():
    """What it owes to other waiters is passed on at the end of leaving."""

    class SlowListener(AsyncListener):
        async def leave(self, *arguments, **named):
            leaving.set()
            await go_on.wait()
            await super().leave(*arguments, **named)

    async def main():
        waiting = asyncio.ensure_future(scene.waiter.wait(2_000, None))
        await leaving.wait()
        waiting.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    leaving, go_on = asyncio.Event(), asyncio.Event()
    scene = Scene(AsyncRedisWaiter, AsyncBackend(), SlowListener())
    scene.wait(1_000, signal=None)
    old, scene.listener = scene.listener, AsyncListener()
    asyncio.run(main())
    assert old.left == [(False, False)]


# -- leaving ----------------------------------------------------------------------------------


def test_a_waiter_that_has_not_waited_leaves_nothing(scene):
    scene.attempt()
    scene.close()
    assert scene.listener.left == []


def test_a_waiter_leaves_once(scene):
    scene.wait()
    scene.close()
    scene.close()
    assert scene.listener.left == [(False, False)]


def test_a_waiter_that_was_refused_and_not_woken_leaves_without_a_wake_up(scene):
    assert scene.attempt() == Refusal()
    scene.wait()
    scene.close()
    assert scene.listener.left == [(False, False)]


def test_a_waiter_that_is_interrupted_in_its_first_wait_leaves_without_a_wake_up(scene):
    scene.listener.fails = True
    with pytest.raises(StoppedError):
        scene.wait()
    scene.close()
    assert scene.listener.left == [(False, False)]


@pytest.fixture
def woken(scene):
    """A waiter that was refused, and then woken."""
    scene.attempt()
    scene.listener.wakes = True
    scene.wait()
    return scene


def test_a_woken_waiter_that_leaves_without_an_attempt_has_a_wake_up(woken):
    woken.close()
    assert woken.listener.left == [(True, False)]


def test_a_woken_waiter_that_is_refused_has_used_its_wake_up(woken):
    woken.attempt()
    woken.close()
    assert woken.listener.left == [(False, False)]


def test_a_woken_waiter_that_is_granted_the_lock_leaves_with_it(woken):
    woken.backend.answer = GRANTED
    assert woken.attempt() is GRANTED
    woken.close()
    assert woken.listener.left == [(False, True)]


def test_a_woken_waiter_whose_attempt_failed_still_has_its_wake_up(woken):
    woken.backend.fails = True
    with pytest.raises(StoppedError):
        woken.attempt()
    woken.close()
    assert woken.listener.left == [(True, False)]


# -- the undo of a blocking waiter ------------------------------------------------------------


ONLY_BLOCKING = pytest.mark.parametrize("scene", ["blocking"], indirect=True)


@ONLY_BLOCKING
def test_the_undo_of_a_waiter_leaves_and_undoes_the_last_attempt(scene):
    scene.attempt()
    scene.wait()
    scene.attempt()
    scene.waiter.undo()
    assert scene.listener.left == [(False, False)]
    assert scene.backend.undone == scene.backend.lock_ids[1:]


@ONLY_BLOCKING
def test_an_interrupt_while_a_waiter_leaves_does_not_prevent_the_undo(scene, monkeypatch):
    def interrupted(*_arguments, **_named):
        raise StoppedError

    scene.attempt()
    scene.wait()
    monkeypatch.setattr(scene.listener, "leave", interrupted)
    with pytest.raises(StoppedError):
        scene.waiter.undo()
    assert scene.backend.undone == scene.backend.lock_ids


@ONLY_BLOCKING
def test_without_an_attempt_there_is_nothing_to_undo(scene):
    scene.waiter.undo()
    assert scene.backend.undone == []
