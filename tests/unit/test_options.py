"""The options of lock(), checked at once, and the decisions at the end of its block."""

from __future__ import annotations

import threading
from unittest.mock import MagicMock

import fakeredis
import pytest

from syncguard import (
    Acquisition,
    Held,
    LockError,
    LockLost,
    ReleaseResult,
    aio,
    lock,
    with_telemetry,
)
from syncguard._lock.block_state import lock_lost, was_lost
from syncguard._lock.handles import Grant
from syncguard._lock.options import Options, check_backend, granted_too_late
from syncguard._lock.release_after_block import Disposal
from syncguard.clock import holder_clock_ms
from syncguard.memory import MemoryBackend
from syncguard.redis import AsyncRedisBackend, RedisBackend

DEFAULTS = {
    "key": "k",
    "ttl_ms": 1_000,
    "acquisition": Acquisition(),
    "auto_extend": False,
    "max_hold_ms": None,
    "holder": None,
    "on_lost": None,
    "on_release_error": None,
    "signal": None,
}
FAR_FUTURE = 1e15
LONG_AGO = -1e15


def held(sent_at_ms=FAR_FUTURE):
    return Held(Grant("A" * 22, "000000000000001", 0, "key", 1_000, sent_at_ms, Disposal()))


def refused(**options):
    with pytest.raises(LockError) as caught:
        Options(**DEFAULTS | options)
    assert caught.value.code == "InvalidArgument"
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 1},
        {"key": "k" * 513},
        {"ttl_ms": 0},
        {"ttl_ms": True},
        {"ttl_ms": 1.5},
        {"holder": "a\nb"},
        {"acquisition": {"timeout_ms": 1}},
        {"acquisition": None},
        {"auto_extend": 1},
        {"auto_extend": True, "max_hold_ms": 0},
        {"auto_extend": True, "max_hold_ms": 1.0},
        {"max_hold_ms": 1_000},
        {"on_lost": "call me"},
        {"on_release_error": 1},
        {"signal": "stop"},
    ],
    ids=lambda options: next(reversed(options)) + " " + repr(options)[-20:],
)
def test_an_invalid_option_is_refused_when_lock_is_called(options):
    refused(**options)


def test_max_hold_ms_without_auto_extend_is_refused_with_a_hint():
    assert "auto_extend=True" in refused(max_hold_ms=1_000)


def test_a_signal_that_is_set_already_is_a_valid_option():
    signal = threading.Event()
    signal.set()
    assert Options(**DEFAULTS | {"signal": signal}).signal is signal


@pytest.mark.parametrize(
    ("options", "watched"),
    [({}, False), ({"auto_extend": True}, True), ({"on_lost": print}, True)],
)
def test_the_heartbeat_watches_a_lock_with_auto_extend_or_on_lost(options, watched):
    assert Options(**DEFAULTS | options).watched is watched


def test_the_callback_of_the_lock_overrides_that_of_the_backend():
    theirs, mine = Disposal(on_release_error=print, timeout_ms=70), lambda *_: None
    assert Options(**DEFAULTS).disposal_of(theirs, held()) == theirs
    chosen = Options(**DEFAULTS | {"on_release_error": mine}).disposal_of(theirs, held())
    assert (chosen.on_release_error, chosen.timeout_ms) == (mine, 70)


@pytest.mark.parametrize(("backends", "chosen"), [(None, 1_000), (70, 70), (5_000, 1_000)])
def test_releasing_a_lost_lock_takes_at_most_one_second(backends, chosen):
    lost = held(LONG_AGO)
    lost.end()
    disposal = Options(**DEFAULTS).disposal_of(Disposal(timeout_ms=backends), lost)
    assert disposal.timeout_ms == chosen


@pytest.mark.parametrize(
    ("ended", "answered", "released", "lost"),
    [
        ("known", "in time", ReleaseResult(True), True),
        ("in time", "in time", ReleaseResult(True), False),
        ("late", "late", ReleaseResult(True), False),
        ("in time", "in time", ReleaseResult(False), True),
        ("late", "late", ReleaseResult(False), True),
        ("in time", "late", ReleaseResult(False), False),
        ("in time", "in time", None, False),
        ("in time", "late", None, False),
        ("late", "late", None, True),
        ("in time", "late", ReleaseResult(True, assumed=True), False),
        ("late", "late", ReleaseResult(True, assumed=True), True),
    ],
)
def test_a_lock_was_lost_if_known_or_ended_late_or_not_found_before_its_deadline(
    ended, answered, released, lost
):
    lock = held(LONG_AGO if ended == "late" else FAR_FUTURE)
    lock.known_lost = ended == "known"
    lock.end()
    lock.deadline_ms = LONG_AGO if answered == "late" else FAR_FUTURE
    assert was_lost(lock, released) is lost


class TestALockWhoseBlockHasEnded:
    @pytest.fixture
    def ended(self):
        lock = held()
        lock.end()
        lock.deadline_ms = LONG_AGO  # time passes
        return lock

    def test_was_not_lost_though_its_ttl_has_ended_since(self, ended):
        ended.end()  # only the first end counts
        assert not ended.lost
        assert "ended" in repr(ended)

    def test_is_not_held(self, ended):
        with pytest.raises(LockLost, match="its block has ended"):
            ended.ensure_held()


def test_the_error_for_a_lost_lock_has_the_identifiers_but_prints_none():
    error = lock_lost("the-key", held())
    assert (error.context.key, error.context.lock_id) == ("the-key", "A" * 22)
    assert "the-key" not in repr(error) + str(error)


def test_the_context_of_a_failed_release_says_that_it_was_a_lock_block():
    context = Options(**DEFAULTS).release_context(held())
    assert (context.key, context.lock_id, context.source) == ("k", "A" * 22, "lock")


def test_a_grant_that_arrives_after_its_ttl_is_too_late():
    late = Grant("A" * 22, "0" * 15, 0, "k", 10, holder_clock_ms() - 10, Disposal())
    in_time = Grant("A" * 22, "0" * 15, 0, "k", 10**6, holder_clock_ms(), Disposal())
    assert granted_too_late(late)
    assert not granted_too_late(in_time)


def test_options_do_not_show_their_key():
    assert "very-secret" not in repr(Options(**DEFAULTS | {"key": "very-secret"}))


# -- backends -------------------------------------------------------------------------------------


def its_kind(wants_async):
    return "AsyncRedisBackend" if wants_async else "RedisBackend"


@pytest.mark.parametrize("wants_async", [False, True])
@pytest.mark.parametrize("mistaken", [None, "redis://:secret@host", fakeredis.FakeRedis(), 42])
def test_an_object_that_is_not_a_backend_is_refused_with_an_example(mistaken, wants_async):
    with pytest.raises(LockError, match=f"such as {its_kind(wants_async)}") as caught:
        check_backend(mistaken, wants_async=wants_async)
    assert caught.value.code == "InvalidArgument"
    assert type(mistaken).__name__ in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [RedisBackend, MemoryBackend])
def test_the_class_of_a_backend_is_refused_as_a_backend(kind):
    text = rf"the class {kind.__name__}; .* RedisBackend\(client\)"
    with pytest.raises(LockError, match=text):
        check_backend(kind, wants_async=False)


def blocking_backend():
    return RedisBackend(fakeredis.FakeRedis())


def asyncio_backend():
    return AsyncRedisBackend(fakeredis.FakeAsyncRedis())


@pytest.mark.parametrize(
    "use",
    [
        lambda: lock(asyncio_backend(), "k"),
        lambda: with_telemetry(asyncio_backend(), print),
        lambda: lock(aio.with_telemetry(asyncio_backend(), print), "k"),
        lambda: lock(ThirdParty(), "k"),
    ],
)
def test_an_asyncio_backend_in_blocking_code_is_refused_with_a_hint(use):
    with pytest.raises(LockError, match=r"use syncguard\.aio"):
        use()


@pytest.mark.parametrize(
    "use",
    [
        lambda: aio.lock(blocking_backend(), "k"),
        lambda: aio.with_telemetry(blocking_backend(), print),
        lambda: aio.lock(with_telemetry(blocking_backend(), print), "k"),
    ],
)
def test_a_blocking_backend_in_asyncio_code_is_refused_with_a_hint(use):
    with pytest.raises(LockError, match="for a blocking one use syncguard"):
        use()


class ThirdParty:
    """A third-party asyncio backend."""

    async def acquire(self, *args, **kwargs): ...


class Delegating:
    """A third-party backend with a plain method that may return an awaitable."""

    def acquire(self, *args, **kwargs): ...


@pytest.mark.parametrize("backend", [ThirdParty(), Delegating(), asyncio_backend()])
def test_a_third_party_asyncio_backend_is_accepted(backend):
    check_backend(backend, wants_async=True)


@pytest.mark.parametrize("backend", [Delegating(), MagicMock(), blocking_backend()])
def test_a_third_party_blocking_backend_is_accepted(backend):
    check_backend(backend, wants_async=False)


@pytest.mark.parametrize("kind", [RedisBackend, AsyncRedisBackend])
@pytest.mark.parametrize("mistaken", [None, "redis://:secret@host"])
def test_an_object_that_is_not_a_client_is_refused_with_a_hint_at_from_url(kind, mistaken):
    with pytest.raises(LockError, match=rf"{kind.__name__}\.from_url") as caught:
        kind(mistaken)
    assert caught.value.code == "InvalidArgument"
    assert "secret" not in str(caught.value)
