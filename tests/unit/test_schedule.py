"""When to extend which lock and when a lock is lost, with a fake clock."""

from __future__ import annotations

import weakref

import pytest

from syncguard._heartbeat.schedule import Beat, Schedule
from syncguard._lock.handles import Grant
from syncguard._lock.held import Held
from syncguard._lock.release_after_block import Disposal

TTL = 3_000
START = 1e15  # far beyond the real clock, which the schedule must not read


def held(sent_at_ms=START, ttl_ms=TTL):
    return Held(Grant("A" * 22, "000000000000001", 0, "key", ttl_ms, sent_at_ms, Disposal()))


@pytest.fixture
def schedule():
    return Schedule()


def watch(schedule, *, sent_at_ms=START, ttl_ms=TTL, renews=True, max_hold_ms=None):
    beat = Beat(
        held(sent_at_ms, ttl_ms),
        "connection",
        ttl_ms,
        sent_at_ms,
        renews=renews,
        max_hold_ms=max_hold_ms,
    )
    schedule.add(beat)
    return beat


def test_an_empty_schedule_has_nothing_to_do(schedule):
    assert schedule.next_ms() is None
    assert schedule.take_due(START) == ([], [])


def test_a_lock_is_due_at_a_third_of_its_ttl(schedule):
    beat = watch(schedule)
    assert schedule.next_ms() == START + 1_000
    assert schedule.take_due(START + 999) == ([], [])
    assert schedule.take_due(START + 1_000) == ([], [beat])


def test_locks_that_are_due_soon_are_extended_together_with_one_that_is_due(schedule):
    due, soon = watch(schedule), watch(schedule, sent_at_ms=START + 25)
    watch(schedule, sent_at_ms=START + 26)
    assert schedule.take_due(START + 1_000) == ([], [due, soon])


def test_locks_that_are_due_soon_wake_nobody(schedule):
    beat = watch(schedule)
    assert schedule.take_due(beat.due_ms - 1) == ([], [])


def test_a_short_ttl_is_extended_early_by_one_percent_of_it(schedule):
    due = watch(schedule, ttl_ms=300)
    soon = watch(schedule, ttl_ms=300, sent_at_ms=START + 3)
    watch(schedule, ttl_ms=300, sent_at_ms=START + 4)
    assert schedule.take_due(START + 100) == ([], [due, soon])


def test_a_lock_is_never_lost_early(schedule):
    due = watch(schedule)
    doomed = watch(schedule, renews=False, ttl_ms=1_030, sent_at_ms=START)
    assert START + 1_000 < doomed.lost_at_ms < START + 1_025
    assert schedule.take_due(START + 1_000) == ([], [due])
    assert not doomed.over
    assert schedule.take_due(doomed.lost_at_ms) == ([doomed], [])


def test_a_lock_that_is_being_extended_is_not_due_again(schedule):
    watch(schedule)
    schedule.take_due(START + 1_000)
    assert schedule.take_due(START + 2_000) == ([], [])


def test_the_next_extension_is_due_a_third_of_the_ttl_after_the_last_request(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_100)
    schedule.extended(beat, START + 1_100, 42)
    assert schedule.next_ms() == START + 2_100
    assert beat.held.expires_at_ms == 42


def test_the_deadline_is_the_time_of_the_last_successful_request_plus_the_ttl(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    schedule.extended(beat, START + 1_000, 42)
    assert beat.held.deadline_ms == START + 1_000 + TTL


def test_a_failed_request_does_not_move_the_deadline(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    schedule.failed(beat, START + 1_500)
    assert beat.held.deadline_ms == START + TTL


def test_a_failed_request_is_retried_soon(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    schedule.failed(beat, START + 1_500)
    assert START + 1_500 < schedule.next_ms() <= START + 1_750
    assert schedule.take_due(START + 1_750) == ([], [beat])


@pytest.mark.parametrize(
    ("ttl_ms", "after_ms"), [(1, 10), (200, 10), (500, 25), (3_000, 150), (3_600_000, 250)]
)
def test_a_retry_comes_after_a_twentieth_of_the_ttl_between_10_and_250_ms(
    schedule, ttl_ms, after_ms
):
    beat = watch(schedule, ttl_ms=ttl_ms)
    schedule.failed(beat, START)
    assert beat.due_ms - START == after_ms


def test_a_lock_without_an_answer_is_lost_at_its_deadline_and_not_later(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    assert schedule.next_ms() <= START + TTL
    lost, due = schedule.take_due(START + TTL)
    assert (lost, due) == ([beat], [])


@pytest.mark.parametrize(("ttl_ms", "before_ms"), [(TTL, 20), (1_000, 20), (500, 10)])
def test_a_lock_is_lost_shortly_before_anybody_else_can_acquire_it(schedule, ttl_ms, before_ms):
    beat = watch(schedule, ttl_ms=ttl_ms)
    assert beat.lost_at_ms == START + ttl_ms - before_ms


def test_a_lock_is_lost_only_once(schedule):
    watch(schedule)
    assert len(schedule.take_due(START + TTL)[0]) == 1
    assert schedule.take_due(START + 2 * TTL) == ([], [])


def test_a_lock_whose_extensions_all_fail_is_lost_at_the_deadline(schedule):
    beat = watch(schedule)
    now = START
    while not (taken := schedule.take_due(now))[0]:
        for due in taken[1]:
            schedule.failed(due, now)
        assert schedule.next_ms() > now
        now = schedule.next_ms()
    assert taken[0] == [beat]
    assert now <= START + TTL


def test_after_a_sleep_longer_than_the_ttl_a_lock_is_lost_and_not_due(schedule):
    beat = watch(schedule)
    assert schedule.take_due(START + 10 * TTL) == ([beat], [])


def test_a_released_lock_is_neither_due_nor_lost(schedule):
    beat = watch(schedule)
    beat.over = True
    assert schedule.next_ms() is None
    assert schedule.take_due(START + TTL) == ([], [])


@pytest.mark.parametrize("late", ["extended", "failed"])
def test_an_answer_after_the_release_changes_nothing(schedule, late):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    beat.over = True
    if late == "extended":
        schedule.extended(beat, START + 1_000, 42)
    else:
        schedule.failed(beat, START + 1_000)
    assert schedule.next_ms() is None
    assert beat.held.deadline_ms == START + TTL


def test_without_auto_extend_only_the_deadline_is_watched(schedule):
    beat = watch(schedule, renews=False)
    assert schedule.take_due(START + 2_000) == ([], [])
    assert schedule.take_due(START + TTL) == ([beat], [])


def test_after_max_hold_ms_a_lock_is_not_extended_and_is_lost(schedule):
    beat = watch(schedule, max_hold_ms=2_500)
    for sent in (1_000, 2_000):
        assert schedule.take_due(START + sent) == ([], [beat])
        schedule.extended(beat, START + sent, 42)
    assert schedule.take_due(START + 3_000) == ([], [])
    assert schedule.take_due(START + 2_000 + TTL) == ([beat], [])


def test_an_extension_that_is_due_when_max_hold_ms_ends_is_not_sent(schedule):
    beat = watch(schedule, max_hold_ms=TTL // 3)
    assert schedule.next_ms() == beat.lost_at_ms  # no wake-up for it either
    assert schedule.take_due(START + TTL / 3) == ([], [])


def test_an_extension_that_comes_late_is_not_sent_after_max_hold_ms(schedule):
    beat = watch(schedule, max_hold_ms=1_500)
    assert schedule.take_due(START + 1_500) == ([], [])
    assert not beat.sending
    assert schedule.next_ms() == beat.lost_at_ms
    assert schedule.take_due(START + TTL) == ([beat], [])


def test_an_extension_that_comes_late_is_sent_before_max_hold_ms(schedule):
    beat = watch(schedule, max_hold_ms=1_500)
    assert schedule.take_due(START + 1_499) == ([], [beat])


def test_with_max_hold_ms_below_a_third_of_the_ttl_a_lock_is_never_extended(schedule):
    beat = watch(schedule, max_hold_ms=500)
    assert schedule.take_due(START + 2_900) == ([], [])
    assert schedule.take_due(START + TTL) == ([beat], [])


def test_locks_are_due_in_the_order_of_their_time(schedule):
    late = watch(schedule, ttl_ms=9_000)
    soon = watch(schedule, ttl_ms=300)
    middle = watch(schedule, ttl_ms=3_000)
    assert schedule.next_ms() == START + 100
    assert schedule.take_due(START + 100) == ([], [soon])
    soon.over = True
    assert schedule.take_due(START + 3_000 - 100) == ([], [middle])
    middle.over = True
    assert schedule.take_due(START + 3_000) == ([], [late])


def test_all_due_locks_are_returned_together(schedule):
    beats = [watch(schedule) for _ in range(1_000)]
    assert schedule.take_due(START + 1_000) == ([], beats)


def test_entries_of_released_locks_do_not_accumulate(schedule):
    """Short blocks with a long TTL: their heap entries would be due much later."""
    kept = watch(schedule)
    for _ in range(1_000):
        watch(schedule, ttl_ms=TTL * 1_000).over = True
    assert len(schedule._heap) < 100
    assert schedule.take_due(START + TTL / 3) == ([], [kept])


def test_released_locks_leave_the_others_in_the_order_of_their_time(schedule):
    soon = watch(schedule, ttl_ms=300)
    late, middle = watch(schedule, ttl_ms=9_000), watch(schedule, ttl_ms=3_000)
    soon.over = True
    assert set(schedule.beats()) == {late, middle}
    assert schedule.next_ms() == middle.due_ms


def test_a_lock_that_was_extended_is_listed_once(schedule):
    beat = watch(schedule)
    schedule.take_due(START + 1_000)
    schedule.extended(beat, START + 1_000, 42)
    assert schedule.beats() == [beat]


def test_the_more_locks_are_held_the_more_rarely_stale_entries_are_looked_for(
    schedule, monkeypatch
):
    searches = []
    search = schedule._drop_stale
    monkeypatch.setattr(schedule, "_drop_stale", lambda: (searches.append(1), search()))
    for _ in range(2_000):
        watch(schedule)
    assert len(searches) <= 5  # after 64 entries, and then each time that their number tripled


class Owner:
    """Stands for the lock that a beat belongs to."""


def test_a_beat_is_over_when_its_lock_was_dropped(schedule):
    beat, owner = watch(schedule), Owner()
    beat.owner = weakref.ref(owner)
    assert beat.has_owner
    assert beat.is_active
    del owner
    assert not beat.has_owner
    assert not beat.is_active
    assert beat.over


def test_a_beat_without_an_owner_is_active_until_it_is_over(schedule):
    beat = watch(schedule)
    assert beat.has_owner
    assert beat.is_active
    beat.over = True
    assert not beat.is_active
