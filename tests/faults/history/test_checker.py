"""The checker itself: it finds every kind of wrong history, and accepts right ones.

A right history that looks wrong is accepted too: what cannot be known is not a violation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from history.checker import HANG_MS, RULES, check
from history.log import Event, Log, read, short_id

TTL_MS = 1_000


def granted(lock: str, fence: int, at: float, *, sent_at: float | None = None, **more) -> Event:
    more = {"pid": 1, "key": "k", "ttl_ms": TTL_MS, **more}
    sent_at = at - 1 if sent_at is None else sent_at
    return Event("granted", at, lock=lock, fence=f"{fence:015}", sent_at=sent_at, **more)


def believed(lock: str, at: float, *, deadline: float = 0.0, pid: int = 1) -> Event:
    return Event("believed", at, pid, lock=lock, key="k", deadline=deadline)


def left(lock: str, at: float) -> list[Event]:
    return [Event("leaving", at, 1, lock=lock), Event("left", at + 1, 1, lock=lock)]


def released(lock: str, sent_at: float, at: float, *, ok: bool | None = True, assumed=False):
    return Event("released", at, 1, lock=lock, sent_at=sent_at, ok=ok, assumed=assumed)


def told(lock: str, at: float, deadline: float, how: str = "on_lost", pid: int = 1) -> Event:
    return Event("told", at, pid, lock=lock, deadline=deadline, text=how)


def rules_broken(*events: Event) -> set[str]:
    return {violation.rule for violation in check(events)}


# -- one believed holder --------------------------------------------------------------------------


def test_two_holders_that_believe_at_the_same_time_are_found():
    history = [granted("a", 1, 10), believed("a", 31), granted("b", 2, 30), believed("b", 40)]
    assert rules_broken(*history) == {"one believed holder"}


def test_a_holder_that_believes_long_after_two_later_ones_is_found():
    later = [granted("b", 2, 30), believed("b", 40), granted("c", 3, 50), believed("c", 55)]
    history = [granted("a", 1, 10), *later, believed("a", 60)]
    assert rules_broken(*history) == {"one believed holder"}


def test_a_forked_child_that_believes_in_its_parents_lock_is_found():
    history = [granted("a", 1, 10), believed("a", 20, pid=2), believed("a", 30)]
    assert rules_broken(*history) == {"one believed holder"}


def test_a_holder_that_believed_until_the_next_one_asked_is_right():
    history = [granted("a", 1, 10), believed("a", 29), granted("b", 2, 30), believed("b", 40)]
    assert rules_broken(*history) == set()


def test_a_grant_that_was_noted_late_by_a_holder_that_never_believed_in_it_is_right():
    """The process was stopped between the answer and the log."""
    late = granted("a", 1, 900, sent_at=10)
    assert rules_broken(late, granted("b", 2, 850), believed("b", 950)) == set()


def test_holders_of_different_keys_do_not_exclude_each_other():
    history = [granted("a", 1, 10), believed("a", 50), granted("b", 1, 30, key="other")]
    assert rules_broken(*history) == set()


def test_a_lock_that_was_handed_over_has_one_believed_holder_after_the_other():
    first, second = granted("a", 1, 10), granted("b", 1, 30, adopted=True)
    assert rules_broken(first, second, believed("b", 40)) == set()
    both = (believed("b", 40), believed("a", 35))
    assert rules_broken(first, second, *both) == {"one believed holder"}


# -- fences ---------------------------------------------------------------------------------------


def test_a_fence_that_repeats_is_found():
    assert rules_broken(granted("a", 1, 10), granted("b", 1, 30)) == {"fences increase"}


def test_a_fence_that_goes_down_is_found():
    assert rules_broken(granted("a", 2, 10), granted("b", 1, 30)) == {"fences increase"}


def test_a_fence_below_that_of_a_much_earlier_grant_is_found():
    history = [granted("a", 3, 10), granted("b", 4, 30), granted("c", 2, 50)]
    assert rules_broken(*history) == {"fences increase"}


def test_fences_that_begin_again_break_only_the_rule_of_the_fences():
    old = [granted("a", 7, 10), released("a", 20, 21), *left("a", 20)]
    new = [granted("b", 1, 30), released("b", 40, 41), *left("b", 40)]
    assert rules_broken(*old, *new) == {"fences increase"}


def test_of_two_grants_that_were_asked_for_at_the_same_time_either_may_be_first():
    """The first was answered late: it ran first, and its holder heard of it after the second."""
    history = [granted("a", 2, 30, sent_at=5), granted("b", 1, 40, sent_at=6)]
    assert rules_broken(*history) == set()


# -- extensions and releases ----------------------------------------------------------------------


def test_an_extension_after_a_later_grant_is_found():
    extended = Event("extended", 41, 1, lock="a", sent_at=40, ok=True)
    history = [granted("a", 1, 10), granted("b", 2, 30), extended]
    assert rules_broken(*history) == {"nothing after a later grant"}


def test_an_extension_by_the_heartbeat_after_a_later_grant_is_found():
    history = [granted("b", 2, 30), granted("a", 1, 10)]
    seen = believed("a", 29, deadline=31 + TTL_MS)
    assert rules_broken(*history, seen) == {"nothing after a later grant"}


def test_a_release_after_a_later_grant_is_found():
    history = [granted("a", 1, 10), granted("b", 2, 30), released("a", 40, 41)]
    assert rules_broken(*history) == {"nothing after a later grant"}


def test_an_extension_that_was_sent_before_the_later_grant_is_right():
    extended = Event("extended", 41, 1, lock="a", sent_at=29, ok=True)
    assert rules_broken(granted("a", 1, 10), granted("b", 2, 30), extended) == set()


def test_a_release_that_finds_nothing_after_a_later_grant_is_right():
    history = [granted("a", 1, 10), granted("b", 2, 30), released("a", 40, 41, ok=False)]
    assert rules_broken(*history) == set()


def test_a_lock_that_is_released_twice_is_found():
    history = [granted("a", 1, 10), released("a", 20, 21), released("a", 22, 23)]
    assert rules_broken(*history) == {"released once"}


def test_a_release_that_was_sent_again_because_its_reply_was_lost_is_right():
    first, again = released("a", 20, 21), released("a", 22, 23, assumed=True)
    assert rules_broken(granted("a", 1, 10), first, again) == set()


# -- LockLost -------------------------------------------------------------------------------------


def test_a_holder_that_was_overtaken_and_not_told_is_found():
    history = [granted("a", 1, 10), granted("b", 2, 30), *left("a", 40)]
    assert rules_broken(*history) == {"overtaken are told"}


def test_a_holder_that_was_overtaken_and_told_is_right():
    history = [granted("a", 1, 10), granted("b", 2, 2_000), *left("a", 2_040)]
    assert rules_broken(*history, told("a", 2_041, 1_010, "left")) == set()


def test_a_holder_whose_block_ended_before_the_next_grant_need_not_be_told():
    assert rules_broken(granted("a", 1, 10), *left("a", 29), granted("b", 2, 30)) == set()


def test_a_holder_that_was_killed_cannot_be_told():
    assert rules_broken(granted("a", 1, 10), granted("b", 2, 30)) == set()


def test_lock_lost_without_a_loss_is_found():
    history = [granted("a", 1, 10), told("a", 500, deadline=1_010)]
    assert rules_broken(*history) == {"nobody else is told"}


def test_lock_lost_because_the_release_was_slow_is_found():
    """The block ended in time, and the answer to the release came after the deadline."""
    slow = released("a", 500, 3_000, ok=None)
    history = [granted("a", 1, 10), *left("a", 499), slow, told("a", 3_001, 1_010, "left")]
    assert rules_broken(*history) == {"nobody else is told"}


def test_lock_lost_to_a_holder_that_was_overtaken_only_after_its_block_is_found():
    slow, late = released("a", 500, 3_000, ok=False), granted("b", 2, 2_000)
    history = [granted("a", 1, 10), *left("a", 499), slow, late, told("a", 3_001, 1_010, "left")]
    assert rules_broken(*history) == {"nobody else is told"}


def test_lock_lost_after_the_deadline_is_right_also_if_nobody_else_has_the_lock():
    assert rules_broken(granted("a", 1, 10), told("a", 1_011, deadline=1_010)) == set()


def test_the_heartbeat_may_tell_the_loss_shortly_before_the_deadline():
    assert rules_broken(granted("a", 1, 10), told("a", 991, deadline=1_010)) == set()
    assert rules_broken(granted("a", 1, 10), told("a", 989, deadline=1_010)) != set()


def test_lock_lost_before_the_deadline_is_right_if_somebody_else_may_have_had_the_lock():
    history = [granted("a", 1, 10), told("a", 500, 1_010), granted("b", 2, 600, sent_at=499)]
    assert rules_broken(*history) == set()


def test_a_forked_child_may_hear_that_it_does_not_hold_its_parents_lock():
    assert rules_broken(granted("a", 1, 10), told("a", 20, deadline=1_010, pid=2)) == set()


# -- the rest -------------------------------------------------------------------------------------


def test_a_name_that_never_expires_is_found():
    assert rules_broken(Event("unlimited", 10, text="a lock")) == {"everything expires"}


def test_a_call_that_never_ends_is_found():
    assert rules_broken(Event("begin", 10, 1, "w", call=1, text="lock")) == {"nothing hangs"}


def test_a_call_that_takes_too_long_is_found():
    begin = Event("begin", 10, 1, "w", call=1, text="lock")
    assert rules_broken(begin, Event("end", 11 + HANG_MS, 1, "w", call=1)) == {"nothing hangs"}
    assert rules_broken(begin, Event("end", 9 + HANG_MS, 1, "w", call=1)) == set()


def test_the_end_of_another_workers_call_ends_nothing():
    begin = Event("begin", 10, 1, "w", call=1, text="lock")
    assert rules_broken(begin, Event("end", 11, 1, "v", call=1)) == {"nothing hangs"}
    assert rules_broken(begin, Event("end", 11, 2, "w", call=1)) == {"nothing hangs"}


def test_a_call_of_a_process_that_was_killed_need_not_end():
    begin = Event("begin", 10, 1, "w", call=1, text="lock")
    assert rules_broken(begin, Event("killed", 11, 1)) == set()


def test_a_foreign_exception_is_found():
    assert rules_broken(Event("foreign", 10, text="KeyError")) == {"no foreign exception"}


@pytest.mark.parametrize("kind", ["end", "released", "extended"])
def test_an_unexpected_error_is_found(kind):
    assert rules_broken(Event(kind, 10, text="Internal")) == {"no unexpected error"}
    assert rules_broken(Event(kind, 10, text="ServiceUnavailable")) == set()


def test_an_error_that_the_fault_explains_breaks_no_rule():
    events = [Event("end", 10, text="Internal"), Event("end", 11, text="InvalidArgument")]
    (violation,) = check(events, explained_errors=("Internal",))
    assert violation.text == "InvalidArgument"


def test_every_rule_has_a_wrong_history_above():
    text = Path(__file__).read_text(encoding="utf-8")
    for rule in RULES:
        assert f'== {{"{rule.__name__.replace("_", " ")}"}}' in text


# -- the log --------------------------------------------------------------------------------------


def test_the_history_of_several_processes_is_read_in_the_order_of_time(tmp_path: Path):
    for name, at in (("first", 2.0), ("second", 1.0)):
        log = Log(tmp_path / f"{name}.jsonl")
        log.write("granted", at, worker=name, lock=short_id("id"), fence="1")
        log.close()
    assert [event.worker for event in read(tmp_path)] == ["second", "first"]


def test_a_line_that_was_cut_off_by_a_kill_is_left_out(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.write("killed", 1.0)
    log.close()
    path.write_bytes(path.read_bytes() + b'{"kind": "kil')
    assert [event.kind for event in read(tmp_path)] == ["killed"]


def test_a_violation_shows_its_events():
    (violation,) = check([granted("a", 1, 10), granted("b", 1, 30)])
    assert str(violation).count("\n") == 2
    assert "fence=000000000000001" in str(violation)
