"""How lock() acquires its lock, driven with a fake clock: no server and no sleeping."""

from __future__ import annotations

import pytest

from syncguard import Acquisition, LockError, NetworkTimeout
from syncguard._lock.acquire_with_retries import (
    MAX_DELAY_MS,
    MIN_ATTEMPT_MS,
    Attempt,
    Pause,
    acquiring,
    backoff_ms,
)
from syncguard.backend import Refusal

GRANT = object()
PLAIN = Acquisition(jitter="none", timeout_ms=10**9)


class Drive:
    """Drives the generator: a fake clock, and answers to its steps."""

    def __init__(self, policy, *, chance=0.0):
        self.now_ms = 1_000.0
        self.steps = acquiring(policy, lambda: self.now_ms, lambda: chance)
        self.step = next(self.steps)

    def attempt(self, answer=None, takes_ms=0):
        """Answer an attempt, by default with a refusal."""
        assert isinstance(self.step, Attempt)
        self.now_ms += takes_ms
        self.step = self.steps.send(answer or Refusal())

    def pause(self, *, woken_after=None):
        """Wait for the whole pause, or wake earlier. Returns the full length of the pause."""
        assert isinstance(self.step, Pause)
        ms = self.step.ms
        self.now_ms += ms if woken_after is None else woken_after
        self.step = self.steps.send(woken_after is not None)
        return ms

    def pauses(self, count):
        found = []
        for _ in range(count):
            self.attempt()
            found.append(self.pause())
        return found

    def fails(self, answer=None):
        with pytest.raises(LockError) as caught:
            self.attempt(answer)
        assert caught.value.code == "AcquisitionTimeout"
        return str(caught.value)


def test_a_free_lock_is_acquired_at_the_first_attempt():
    drive = Drive(PLAIN)
    with pytest.raises(StopIteration) as done:
        drive.attempt(GRANT)
    assert done.value.value is GRANT


def test_a_lock_that_becomes_free_is_acquired_at_a_later_attempt():
    drive = Drive(PLAIN)
    drive.pauses(3)
    with pytest.raises(StopIteration) as done:
        drive.attempt(GRANT)
    assert done.value.value is GRANT


def test_exponential_backoff_doubles_the_delay():
    assert Drive(PLAIN).pauses(5) == [100, 200, 400, 800, 1600]


def test_fixed_backoff_keeps_the_delay():
    policy = Acquisition(jitter="none", backoff="fixed", retry_delay_ms=70)
    assert Drive(policy).pauses(4) == [70, 70, 70, 70]


def test_doubling_ends_at_an_hour_and_never_overflows():
    policy = Acquisition(max_retries=10**6, retry_delay_ms=10**6, jitter="none")
    assert backoff_ms(policy, 5, lambda: 0.0) == MAX_DELAY_MS
    assert backoff_ms(policy, 10**6, lambda: 0.0) == MAX_DELAY_MS


@pytest.mark.parametrize(
    ("jitter", "least", "middle"), [("none", 100, 100), ("equal", 50, 75), ("full", 0, 50)]
)
def test_jitter_shortens_the_delay(jitter, least, middle):
    policy = Acquisition(jitter=jitter)
    assert backoff_ms(policy, 0, lambda: 0.0) == least
    assert backoff_ms(policy, 0, lambda: 0.5) == middle
    assert backoff_ms(policy, 0, lambda: 0.999) <= 100


def test_every_pause_uses_a_new_random_number():
    draws = iter([0.0, 0.5, 0.25])
    steps = acquiring(Acquisition(jitter="full"), lambda: 0.0, lambda: next(draws))
    next(steps)
    assert steps.send(Refusal()).ms == 0.0
    steps.send(False)
    assert steps.send(Refusal()).ms == 100.0


def test_the_last_pause_is_clamped_to_the_time_that_is_left():
    drive = Drive(Acquisition(jitter="none", timeout_ms=450))
    assert drive.pauses(3) == [100, 200, 150]


def test_after_the_last_clamped_pause_there_is_one_more_attempt():
    drive = Drive(Acquisition(jitter="none", timeout_ms=150))
    drive.pauses(2)
    with pytest.raises(StopIteration):
        drive.attempt(GRANT)


def test_a_delay_that_ends_with_the_holders_lock_is_a_retry():
    drive = Drive(Acquisition(jitter="none", retry_delay_ms=100, max_retries=1))
    drive.attempt(Refusal(remaining_ms=99))
    assert drive.pause() == 100
    assert "after 1 retries" in drive.fails()


def test_when_the_time_is_over_the_error_names_the_time():
    drive = Drive(Acquisition(jitter="none", timeout_ms=150))
    drive.pauses(2)
    assert "within 150 ms" in drive.fails()


def test_time_spent_in_attempts_counts():
    drive = Drive(Acquisition(jitter="none", timeout_ms=1_000))
    with pytest.raises(LockError, match="within 1000 ms"):
        drive.attempt(takes_ms=1_000)


def test_when_the_retries_are_used_up_the_error_names_their_number():
    drive = Drive(Acquisition(jitter="none", max_retries=2))
    drive.pauses(2)
    assert "after 2 retries" in drive.fails()


def test_without_retries_there_is_one_attempt():
    assert "after 0 retries" in Drive(Acquisition(max_retries=0)).fails()


def test_without_time_there_is_one_attempt():
    assert "within 0 ms" in Drive(Acquisition(timeout_ms=0)).fails()


def test_the_error_says_that_somebody_else_holds_the_lock():
    assert "somebody else holds it" in Drive(Acquisition(max_retries=0)).fails()


def test_wake_ups_are_not_counted_as_retries():
    drive = Drive(Acquisition(jitter="none", max_retries=1, timeout_ms=10**9))
    for _ in range(500):
        drive.attempt()
        drive.pause(woken_after=1)
    drive.attempt()
    drive.pause()
    assert "after 1 retries" in drive.fails()


def test_wake_ups_do_not_advance_the_backoff():
    drive = Drive(PLAIN)
    for _ in range(10):
        drive.attempt()
        assert drive.pause(woken_after=1) == 100
    assert drive.pauses(2) == [100, 200]


def test_wake_ups_are_bounded_by_the_timeout():
    drive = Drive(Acquisition(jitter="none", max_retries=1, timeout_ms=500))
    while drive.now_ms < 1_500:
        drive.attempt()
        drive.pause(woken_after=50)
    assert "within 500 ms" in drive.fails()


def test_the_wait_does_not_outlast_the_holder():
    drive = Drive(PLAIN)
    drive.attempt(Refusal(remaining_ms=30))
    assert drive.pause() == 31


def test_waiting_for_the_holder_to_expire_does_not_count_as_a_retry():
    drive = Drive(Acquisition(jitter="none", max_retries=1, timeout_ms=10**9))
    for _ in range(50):
        drive.attempt(Refusal(remaining_ms=10))
        drive.pause()
    assert drive.pauses(1) == [100]
    assert "after 1 retries" in drive.fails()


def test_a_holder_with_more_time_than_the_delay_does_not_change_the_delay():
    drive = Drive(PLAIN)
    drive.attempt(Refusal(remaining_ms=60_000))
    assert drive.pause() == 100
    drive.attempt(Refusal(remaining_ms=60_000))
    assert drive.pause() == 200


def test_an_attempt_says_how_long_the_pause_after_it_would_be():
    drive = Drive(Acquisition(jitter="none", timeout_ms=150, max_retries=5))
    assert drive.step.wait_ms == 100
    drive.pauses(1)
    assert drive.step.wait_ms == 50
    drive.pauses(1)
    assert drive.step.wait_ms == 0


def test_the_last_attempt_announces_no_pause():
    drive = Drive(Acquisition(jitter="none", max_retries=1))
    drive.pauses(1)
    assert drive.step.wait_ms == 0


def test_an_attempt_ends_at_the_deadline_of_the_whole_call():
    drive = Drive(Acquisition(jitter="none", timeout_ms=5_000))
    assert drive.step.deadline_ms == 6_000
    drive.pauses(1)
    assert drive.step.deadline_ms == 6_000


def test_an_attempt_near_the_deadline_has_time_for_an_answer():
    drive = Drive(Acquisition(jitter="none", timeout_ms=150))
    drive.pauses(2)
    assert drive.now_ms == 1_150
    assert drive.step.deadline_ms == 1_150 + MIN_ATTEMPT_MS


def test_a_server_that_does_not_answer_is_a_network_timeout():
    drive = Drive(Acquisition(timeout_ms=10_000))
    error = NetworkTimeout()
    with pytest.raises(NetworkTimeout) as caught:
        drive.attempt(error, takes_ms=10_000)
    assert caught.value is error


def test_a_server_that_stops_answering_after_a_refusal_is_a_network_timeout():
    drive = Drive(Acquisition(jitter="none", timeout_ms=10_000))
    drive.pauses(1)
    with pytest.raises(NetworkTimeout):
        drive.attempt(NetworkTimeout(), takes_ms=9_900)


def test_only_the_last_attempt_without_an_answer_is_contention():
    drive = Drive(Acquisition(jitter="none", timeout_ms=150))
    drive.pauses(2)
    error = NetworkTimeout()
    assert "within 150 ms" in drive.fails(error)


def test_without_time_a_server_that_does_not_answer_is_a_network_timeout():
    with pytest.raises(NetworkTimeout):
        Drive(Acquisition(timeout_ms=0)).attempt(NetworkTimeout(), takes_ms=MIN_ATTEMPT_MS)
