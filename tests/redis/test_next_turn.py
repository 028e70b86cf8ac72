"""The queue of a key: which caller waits, which retries, and when. Uses the server's clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from syncguard import LockError, Turn, TurnGiver, with_telemetry
from syncguard.redis import RedisBackend
from syncguard.redis.script_calls import QUEUE_KEPT_MS, Calls

QUEUE = "syncguard:id::queue:syncguard:k"
LONG_MS = 600_000


@pytest.fixture
def backend(syncguard_backend):
    """A backend whose key ``k`` is held during the whole test."""
    assert syncguard_backend.acquire("k", LONG_MS).ok
    return syncguard_backend


@pytest.fixture
def set_mean_hold(syncguard_redis):
    """Sets the mean hold time in the queue."""

    def set_mean_hold(hold_ms):
        with syncguard_redis.client() as client:
            client.hset(QUEUE, "holdMs", hold_ms)

    return set_mean_hold


def ask(backend, *, wait=LONG_MS, **options):
    return backend.next_turn("k", max_wait_ms=wait, max_delay_ms=LONG_MS, **options)


def test_a_redis_backend_is_a_turn_giver(backend):
    assert isinstance(backend, TurnGiver)
    assert isinstance(with_telemetry(backend, print), TurnGiver)


def test_the_first_refused_caller_waits_and_the_next_retries_later(backend):
    first, second = ask(backend), ask(backend)
    assert first.ticket is not None
    assert second.ticket is None
    assert second.delay_ms > 0
    assert second.place_ms > 0


def test_of_many_concurrent_callers_exactly_one_waits(backend):
    with ThreadPoolExecutor(8) as pool:
        turns = list(pool.map(lambda _: ask(backend), range(40)))
    assert sum(turn.ticket is not None for turn in turns) == 1
    assert len({turn.place_ms for turn in turns if turn.ticket is None}) == 39


def test_after_a_wait_the_caller_whose_time_it_is_waits_next(backend, set_mean_hold):
    set_mean_hold(10_000)
    first = ask(backend)
    ask(backend)
    backend.end_wait("k", first.ticket)
    assert ask(backend).ticket is None, "this caller is new, and others have an earlier time"
    assert ask(backend, place_ms=1).ticket is not None


def test_end_wait_does_not_end_the_wait_of_another_caller(backend):
    first = ask(backend)
    backend.end_wait("k", "A" * 22)
    assert ask(backend, place_ms=1).ticket is None
    backend.end_wait("k", first.ticket)
    backend.end_wait("k", first.ticket)
    assert ask(backend, place_ms=1).ticket is not None


def test_ending_a_wait_tells_whether_it_was_the_callers(backend):
    def ended(ticket):
        return backend._runner.run(Calls().end_wait("k", ticket))

    first = ask(backend)
    assert not ended("A" * 22)
    assert ended(first.ticket)
    assert not ended(first.ticket)


def test_a_wait_without_end_wait_ends_after_its_maximum(backend, syncguard_redis):
    ask(backend)
    with syncguard_redis.client() as client:
        client.hset(QUEUE, "waiterUntilMs", 1)
    assert ask(backend, place_ms=1).ticket is not None


def test_callers_retry_about_one_hold_after_each_other(backend, set_mean_hold):
    set_mean_hold(10_000)
    ask(backend)
    places = [ask(backend).place_ms for _ in range(4)]
    assert [later - earlier for earlier, later in pairwise(places)] == [9_000] * 3


def test_a_caller_that_retries_early_keeps_its_assigned_time(backend, set_mean_hold):
    set_mean_hold(100_000)
    ask(backend)
    mine, other = ask(backend), ask(backend)
    assert ask(backend, place_ms=mine.place_ms).place_ms == mine.place_ms
    assert ask(backend).place_ms == other.place_ms + 90_000


def test_no_caller_waits_if_the_hold_is_longer_than_its_wait(backend, set_mean_hold):
    set_mean_hold(100_000)
    turn = ask(backend, wait=2_000)
    assert turn.ticket is None
    assert turn.delay_ms > 2_000


def test_a_caller_with_max_wait_zero_never_waits(backend):
    assert ask(backend, wait=0).ticket is None


def test_the_delay_is_at_most_max_delay_ms(backend, set_mean_hold):
    set_mean_hold(100_000)
    turn = backend.next_turn("k", max_delay_ms=300)
    assert turn.delay_ms == 300
    assert turn.place_ms > 300


def test_a_caller_waits_for_a_lock_that_is_free_now(syncguard_backend, set_mean_hold):
    set_mean_hold(100_000)
    assert ask(syncguard_backend, wait=2_000).ticket is not None


def test_the_usual_hold_rises_slowly_and_falls_quickly(backend, syncguard_redis):
    known = []
    with syncguard_redis.client() as client:
        for held_ms in (1_050, 1_200, 0, 150):
            ask(backend, wait=0, held_ms=held_ms)
            known.append(int(client.hget(QUEUE, "holdMs")))
    assert known == [200, 350, 350, 250]


def test_an_unused_queue_expires(backend, syncguard_redis, set_mean_hold):
    set_mean_hold(10_000)
    ask(backend)
    with syncguard_redis.client() as client:
        assert 0 < client.pttl(QUEUE) <= QUEUE_KEPT_MS
        turn = ask(backend)
        assert turn.ticket is None
        # The queue is kept until the last assigned time, and QUEUE_KEPT_MS longer.
        assert QUEUE_KEPT_MS < client.pttl(QUEUE) <= QUEUE_KEPT_MS + 20_000


def test_acquiring_a_free_lock_creates_no_queue(syncguard_backend, syncguard_redis):
    with syncguard_backend.lock("k"), syncguard_redis.client() as client:
        assert not client.exists(QUEUE)


def test_a_request_that_is_sent_twice_grants_one_wait(backend):
    call = Calls().next_turn("k", 0, 0, LONG_MS, LONG_MS)
    run = backend._runner.run
    assert run(call) == run(call)
    assert run(call).ticket is not None


@pytest.mark.parametrize("reply", [None, 1, [1], [0, b"1", 2], [2, 0, 0], [0, 1]], ids=repr)
def test_a_reply_of_another_shape_is_an_internal_error(reply):
    with pytest.raises(LockError) as caught:
        Calls().next_turn("k", 0, 0, 0, 0).read(reply)
    assert caught.value.code == "Internal"


@pytest.mark.parametrize("bad", [-1, 1.5, True, "1", None, 2**53], ids=repr)
@pytest.mark.parametrize("name", ["place_ms", "held_ms", "max_wait_ms", "max_delay_ms"])
def test_bad_input_is_refused_before_any_request(name, bad):
    with RedisBackend.from_url("redis://localhost:1") as unreachable:
        with pytest.raises(LockError, match=name) as caught:
            unreachable.next_turn("k", **{name: bad})
        assert caught.value.code == "InvalidArgument"


def test_an_invalid_ticket_is_refused():
    with RedisBackend.from_url("redis://localhost:1") as unreachable:
        with pytest.raises(LockError) as caught:
            unreachable.end_wait("k", "x")
        assert caught.value.code == "InvalidArgument"


def test_neither_ticket_nor_key_is_printed(backend):
    turn = ask(backend)
    assert turn.ticket not in repr(turn)
    assert "very-secret" not in repr(Calls().next_turn("very-secret", 0, 0, 0, 0))


def test_telemetry_delegates_turns_and_reports_no_event(backend):
    events = []
    watched = with_telemetry(backend, events.append)
    turn = ask(watched)
    assert turn.ticket is not None
    assert ask(watched, place_ms=1).ticket is None
    watched.end_wait("k", turn.ticket)
    assert ask(watched, place_ms=1).ticket is not None
    assert events == []


def test_telemetry_adds_no_queue_to_a_backend_without_one(backend):
    class Bare:
        disposal = backend.disposal
        capabilities = backend.capabilities
        hash = staticmethod(backend.hash)

        def acquire(self, *args, **options): ...

    watched = with_telemetry(Bare(), print)
    assert watched.next_turn("k") is None
    watched.end_wait("k", "A" * 22)


def test_next_turn_works_after_the_server_lost_its_data(backend, syncguard_redis):
    with syncguard_redis.client() as client:
        client.flushall()
    assert isinstance(ask(backend), Turn)
