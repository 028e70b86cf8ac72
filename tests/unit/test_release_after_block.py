"""Release on exit: never raises, bounded time, errors go to the callback or the log."""

from __future__ import annotations

import _thread
import asyncio
import logging
import threading

import fakeredis
import pytest

from syncguard import LockError, ReleaseErrorContext, ReleaseResult, aio, lock
from syncguard._lock import background_threads
from syncguard._lock.release_after_block import Disposal
from syncguard.redis import AsyncRedisBackend, RedisBackend

CONTEXT = ReleaseErrorContext("the-key", "A" * 22, "handle")
RELEASED = ReleaseResult(True)


class Blocking:
    """Releases with the blocking method."""

    def __call__(self, disposal, release):
        return disposal.release(release, lambda: CONTEXT)


class Asyncio:
    """Releases with the asyncio method."""

    def __call__(self, disposal, release):
        async def run():
            async def releasing():
                return release()

            return await disposal.release_async(releasing, lambda: CONTEXT)

        return asyncio.run(run())


blocking_and_asyncio = pytest.mark.parametrize(
    "release_with", [Blocking(), Asyncio()], ids=["blocking", "asyncio"]
)


def fails(error):
    def release():
        raise error

    return release


@blocking_and_asyncio
def test_a_successful_release_returns_its_result(release_with):
    assert release_with(Disposal(), lambda: RELEASED) == RELEASED
    assert release_with(Disposal(timeout_ms=60_000), lambda: RELEASED) == RELEASED


@blocking_and_asyncio
@pytest.mark.parametrize("timeout_ms", [None, 60_000])
def test_an_error_goes_to_the_callback_and_is_not_raised(release_with, timeout_ms):
    told, error = [], LockError("ServiceUnavailable")
    disposal = Disposal(lambda *about: told.append(about), timeout_ms)
    assert release_with(disposal, fails(error)) is None
    assert told == [(error, CONTEXT)]


@blocking_and_asyncio
def test_a_lock_that_did_not_exist_any_more_is_no_error(release_with):
    told = []
    gone = ReleaseResult(False)
    assert release_with(Disposal(lambda *about: told.append(about)), lambda: gone) == gone
    assert told == []


@blocking_and_asyncio
def test_a_callback_that_fails_is_logged_without_its_arguments(release_with, caplog):
    def complain(_error, context):
        raise RuntimeError(f"cannot report {context.key}")

    assert release_with(Disposal(complain), fails(LockError("Internal"))) is None
    assert "on_release_error" in caplog.text
    assert "the-key" not in caplog.text


@blocking_and_asyncio
def test_by_default_the_error_is_logged_without_key_and_lock_id(release_with, caplog):
    caplog.set_level(logging.DEBUG, "syncguard")
    release_with(Disposal(), fails(LockError("NetworkTimeout", "no answer")))
    [record] = caplog.records
    assert (record.name, record.levelno) == ("syncguard", logging.ERROR)
    assert "NetworkTimeout: no answer" in record.getMessage()
    assert "handle" in record.getMessage()
    assert "the-key" not in caplog.text
    assert "A" * 22 not in caplog.text


def test_a_slow_release_times_out_and_continues_in_the_background():
    told, server_answers, finished = [], threading.Event(), threading.Event()

    def slow():
        server_answers.wait()
        finished.set()
        return RELEASED

    disposal = Disposal(lambda error, _context: told.append(error), timeout_ms=20)
    assert disposal.release(slow, lambda: CONTEXT) is None
    assert [error.code for error in told] == ["NetworkTimeout"]
    server_answers.set()
    assert finished.wait(20)


def no_more_threads(monkeypatch):
    def refuse(*_args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background_threads, "_threads", background_threads.BackgroundThreads())
    monkeypatch.setattr(_thread, "start_new_thread", refuse)


def test_if_no_thread_can_start_the_release_runs_in_the_caller(monkeypatch):
    no_more_threads(monkeypatch)
    assert Disposal(timeout_ms=60_000).release(lambda: RELEASED, lambda: CONTEXT) == RELEASED


def test_if_no_thread_can_start_a_failed_release_is_reported_too(monkeypatch):
    no_more_threads(monkeypatch)
    told, error = [], LockError("ServiceUnavailable")
    disposal = Disposal(lambda *about: told.append(about), timeout_ms=60_000)
    assert disposal.release(fails(error), lambda: CONTEXT) is None
    assert told == [(error, CONTEXT)]


def test_a_slow_release_times_out_in_asyncio_too():
    told = []

    async def run():
        server_answers, finished = asyncio.Event(), asyncio.Event()

        async def slow():
            await server_answers.wait()
            finished.set()
            return RELEASED

        disposal = Disposal(lambda error, _context: told.append(error), timeout_ms=20)
        assert await disposal.release_async(slow, lambda: CONTEXT) is None
        assert not finished.is_set()
        server_answers.set()
        await asyncio.wait_for(finished.wait(), 20)

    asyncio.run(run())
    assert [error.code for error in told] == ["NetworkTimeout"]


def test_a_slow_release_that_fails_in_the_background_is_ignored():
    async def run():
        server_answers = asyncio.Event()

        async def slow():
            await server_answers.wait()
            raise LockError("ServiceUnavailable")

        disposal = Disposal(lambda *_about: None, timeout_ms=20)
        await disposal.release_async(slow, lambda: CONTEXT)
        server_answers.set()
        await asyncio.sleep(0)

    asyncio.run(run(), debug=True)


def test_a_cancellation_is_raised_after_the_release_has_finished():
    released = []

    async def run():
        sent, answered = asyncio.Event(), asyncio.Event()

        async def release():
            sent.set()
            await answered.wait()
            released.append(True)
            return RELEASED

        leaving = asyncio.create_task(Disposal().release_async(release, lambda: CONTEXT))
        await sent.wait()
        leaving.cancel()
        await asyncio.sleep(0)
        assert not leaving.done()
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(run())
    assert released == [True]


def test_a_release_that_fails_while_its_task_is_cancelled_is_reported_too():
    told = []

    async def run():
        sent, answered = asyncio.Event(), asyncio.Event()

        async def release():
            sent.set()
            await answered.wait()
            raise LockError("ServiceUnavailable")

        disposal = Disposal(lambda error, context: told.append((error.code, context)))
        leaving = asyncio.create_task(disposal.release_async(release, lambda: CONTEXT))
        await sent.wait()
        leaving.cancel()
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(run())
    assert told == [("ServiceUnavailable", CONTEXT)]


async def release_fails():
    raise LockError("ServiceUnavailable")


def test_an_async_callback_runs_in_the_background():
    async def run():
        may_end, told = asyncio.Event(), asyncio.Queue()

        async def tell(error, _context):
            await may_end.wait()
            told.put_nowait(error.code)

        assert await Disposal(tell).release_async(release_fails, lambda: CONTEXT) is None
        assert told.empty()
        may_end.set()
        assert await asyncio.wait_for(told.get(), 20) == "ServiceUnavailable"

    asyncio.run(run())


def test_an_async_callback_that_fails_is_logged_without_its_arguments(caplog):
    async def run():
        called = asyncio.Event()

        async def complain(_error, context):
            called.set()
            raise RuntimeError(f"cannot report {context.key}")

        await Disposal(complain).release_async(release_fails, lambda: CONTEXT)
        await asyncio.wait_for(called.wait(), 20)

    asyncio.run(run())
    assert "on_release_error" in caplog.text
    assert "the-key" not in caplog.text


def test_an_async_callback_in_blocking_code_is_logged_as_an_error(caplog):
    async def never_run(_error, _context): ...

    assert Disposal(never_run).release(fails(LockError("Internal")), lambda: CONTEXT) is None
    assert "on_release_error" in caplog.text


def test_a_blocking_backend_refuses_an_async_callback():
    async def tell(_error, _context): ...

    with pytest.raises(LockError, match="on_release_error must be a plain function") as caught:
        RedisBackend(fakeredis.FakeRedis(), on_release_error=tell)
    assert caught.value.code == "InvalidArgument"
    AsyncRedisBackend(fakeredis.FakeAsyncRedis(), on_release_error=tell)


def test_a_blocking_lock_refuses_an_async_callback():
    async def tell(_error, _context): ...

    with pytest.raises(LockError, match="on_release_error must be a plain function"):
        lock(RedisBackend(fakeredis.FakeRedis()), "k", on_release_error=tell)
    aio.lock(AsyncRedisBackend(fakeredis.FakeAsyncRedis()), "k", on_release_error=tell)


class TimeLimitError(Exception):
    """A time limit of a task runner: raised at any point."""


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, TimeLimitError])
def test_an_interruption_from_outside_is_raised_after_one_more_release(interruption):
    calls, told = [], []

    def interrupted_once():
        calls.append(1)
        if len(calls) == 1:
            raise interruption
        return RELEASED

    with pytest.raises(interruption):
        Disposal(lambda *about: told.append(about)).release(interrupted_once, lambda: CONTEXT)
    assert (len(calls), told) == (2, [])


def test_an_exit_inside_of_a_release_with_a_time_limit_is_raised_in_the_caller():
    calls = []

    def exit_once():
        calls.append(1)
        if len(calls) == 1:
            raise SystemExit
        return RELEASED

    disposal = Disposal(timeout_ms=60_000)
    with pytest.raises(SystemExit):
        disposal.release(exit_once, lambda: CONTEXT)
    assert disposal.release(exit_once, lambda: CONTEXT) == RELEASED
    assert len(calls) == 3


@pytest.mark.parametrize(
    "options", [("call me", None), (None, 0), (None, 1.5), (None, True)], ids=repr
)
def test_bad_settings_are_refused(options):
    with pytest.raises(LockError) as caught:
        Disposal.of(*options)
    assert caught.value.code == "InvalidArgument"
