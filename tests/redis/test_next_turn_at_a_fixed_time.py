"""The queue of a key, to the millisecond: ``now`` sets the time of the script.

The lock is acquired at 0. All times are milliseconds after that.
"""

from __future__ import annotations

import json

import pytest

from syncguard.redis.script_calls import EARLY_MS, GUESSED_HOLD_MS

LONG_MS = 600_000
LOCK, QUEUE = "syncguard:k", "syncguard:id::queue:syncguard:k"
WAITS = "waits"


@pytest.fixture
def ask(syncguard_backend, now):
    """Asks at a time. Returns WAITS, or the delay and the place."""
    start_ms = now(0)
    assert syncguard_backend.acquire("k", LONG_MS).ok

    def ask(at_ms, *, place_ms=None, wait_ms=0, max_delay_ms=LONG_MS):
        now(at_ms)
        turn = syncguard_backend.next_turn(
            "k",
            place_ms=0 if place_ms is None else start_ms + place_ms,
            max_wait_ms=wait_ms,
            max_delay_ms=max_delay_ms,
        )
        return WAITS if turn.ticket is not None else (turn.delay_ms, turn.place_ms - start_ms)

    ask.start_ms = start_ms
    return ask


@pytest.fixture
def queue(ask, client):
    """Sets times of the queue, and reads them."""

    class Queue:
        def set(self, *, mean_ms=None, promised_ms=None, waiter_until_ms=None):
            if mean_ms is not None:
                client.hset(QUEUE, "holdMs", mean_ms)
            if promised_ms is not None:
                client.hset(QUEUE, "promisedMs", ask.start_ms + promised_ms)
            if waiter_until_ms is not None:
                until_ms = ask.start_ms + waiter_until_ms
                client.hset(QUEUE, mapping={"waiter": "A" * 22, "waiterUntilMs": until_ms})

        def read(self, field):
            return int(client.hget(QUEUE, field)) - ask.start_ms

    return Queue()


class TestTheRestOfTheHold:
    """Of a lock that is held: how long it will probably be held from now on."""

    def test_is_a_guess_at_first(self, ask):
        _, place_ms = ask(0)
        assert place_ms == GUESSED_HOLD_MS

    def test_is_as_long_as_it_has_lasted_if_no_hold_was_measured(self, ask):
        _, place_ms = ask(1_234)
        assert place_ms == 1_234 + 1_234

    def test_is_what_is_left_of_the_usual_hold(self, ask, queue):
        queue.set(mean_ms=1_000)
        _, place_ms = ask(345)
        assert place_ms == 1_000

    def test_is_over_after_the_usual_hold_and_up_to_twice_as_long(self, ask, queue):
        queue.set(mean_ms=1_000)
        assert [ask(at)[1] for at in (1_000, 2_000)] == [1_000, 2_000]

    def test_is_as_long_as_it_has_lasted_after_twice_the_usual_hold(self, ask, queue):
        queue.set(mean_ms=1_000)
        _, place_ms = ask(2_001)
        assert place_ms == 2_001 + 2_001

    def test_is_not_known_if_the_lock_does_not_say_when_it_was_acquired(self, ask, queue, client):
        queue.set(mean_ms=1_000)
        record = json.loads(client.get(LOCK))
        del record["acquiredAtMs"]
        client.set(LOCK, json.dumps(record))
        _, place_ms = ask(345)
        assert place_ms == 345 + 1_000

    def test_is_nothing_if_the_lock_is_free(self, ask, queue, client):
        queue.set(mean_ms=1_000)
        client.delete(LOCK)
        _, place_ms = ask(345)
        assert place_ms == 345


class TestAPlace:
    def test_is_nine_tenths_of_a_hold_after_the_one_before(self, ask, queue):
        queue.set(mean_ms=1_000)
        assert [ask(0)[1] for _ in range(3)] == [1_000, 1_900, 2_800]
        assert queue.read("promisedMs") == 3_700

    def test_is_one_hold_later_if_somebody_waits(self, ask, queue):
        queue.set(mean_ms=1_000, waiter_until_ms=5_000)
        _, place_ms = ask(300)
        assert place_ms == 2_000
        assert queue.read("promisedMs") == 2_900

    def test_that_is_still_ahead_is_kept(self, ask, queue):
        queue.set(mean_ms=1_000, promised_ms=9_000)
        assert ask(0, place_ms=3_000) == (3_000 - EARLY_MS, 3_000)
        assert queue.read("promisedMs") == 9_000

    def test_that_has_come_is_replaced_if_somebody_else_waits(self, ask, queue):
        queue.set(mean_ms=1_000, promised_ms=9_000, waiter_until_ms=5_000)
        assert ask(3_000, place_ms=3_000, wait_ms=LONG_MS)[1] == 9_000

    @pytest.mark.parametrize(("early_ms", "is_early"), [(EARLY_MS, True), (EARLY_MS + 1, False)])
    def test_of_a_caller_that_came_early_is_kept_and_it_retries_in_time(
        self, ask, queue, early_ms, is_early
    ):
        queue.set(mean_ms=1_000, waiter_until_ms=9_000)
        delay_ms, place_ms = ask(3_000 - early_ms, place_ms=3_000, wait_ms=LONG_MS)
        assert place_ms == 3_000
        assert delay_ms == (early_ms if is_early else 13)


class TestADelay:
    def test_ends_a_little_before_the_place(self, ask, queue):
        queue.set(mean_ms=10_000)
        assert ask(1_000) == (9_000 - EARLY_MS, 10_000)

    def test_ends_at_most_one_hold_before_the_place(self, ask, queue):
        queue.set(mean_ms=100, promised_ms=2_000)
        assert ask(50) == (2_000 - 100 - 50, 2_000)

    def test_is_never_shorter_than_a_quarter_of_a_guessed_hold(self, ask, queue):
        queue.set(mean_ms=100)
        assert ask(100)[0] == 13

    def test_is_never_longer_than_the_caller_allows(self, ask, queue):
        queue.set(mean_ms=10_000)
        assert ask(0, max_delay_ms=77) == (77, 10_000)


class TestACallerWaits:
    @pytest.mark.parametrize(("wait_ms", "waits"), [(701, True), (700, False)])
    def test_if_it_can_wait_longer_than_the_rest_of_the_hold(self, ask, queue, wait_ms, waits):
        queue.set(mean_ms=1_000)
        assert (ask(300, wait_ms=wait_ms) == WAITS) is waits

    def test_for_as_long_as_it_can(self, ask, queue):
        queue.set(mean_ms=1_000)
        assert ask(300, wait_ms=5_000) == WAITS
        assert queue.read("waiterUntilMs") == 5_300

    @pytest.mark.parametrize(("until_ms", "waits"), [(2_000, True), (2_001, False)])
    def test_if_nobody_else_does(self, ask, queue, until_ms, waits):
        queue.set(mean_ms=1_000, waiter_until_ms=until_ms)
        assert (ask(2_000, wait_ms=LONG_MS) == WAITS) is waits

    @pytest.mark.parametrize(("promised_ms", "waits"), [(2_000, True), (2_001, False)])
    def test_if_nobody_has_a_place_after_the_next_hold(self, ask, queue, promised_ms, waits):
        """It is held until 1,000, and the caller would hold it until 2,000."""
        queue.set(mean_ms=1_000, promised_ms=promised_ms)
        assert (ask(300, wait_ms=LONG_MS) == WAITS) is waits

    @pytest.mark.parametrize(("at_ms", "waits"), [(3_000 - EARLY_MS, True), (2_499, False)])
    def test_if_its_own_place_is_near(self, ask, queue, at_ms, waits):
        queue.set(mean_ms=1_000, promised_ms=90_000)
        assert (ask(at_ms, place_ms=3_000, wait_ms=LONG_MS) == WAITS) is waits

    def test_never_in_the_place_of_another(self, ask, queue):
        queue.set(mean_ms=1_000, promised_ms=90_000)
        assert ask(3_000, wait_ms=LONG_MS) != WAITS
