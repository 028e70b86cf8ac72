"""Each step of the undo thread: without a thread, and with a clock that stands still."""

from __future__ import annotations

import _thread
import threading
from types import SimpleNamespace

import pytest

from syncguard.redis import spent_ids, undo_thread
from syncguard.redis.script_calls import Calls
from syncguard.redis.undo_thread import FIRST_PAUSE_S, Undo, UndoThread

CALLS = Calls()
TTL_MS = 600_000
NOW = 100.0


@pytest.fixture(autouse=True)
def slept_s(monkeypatch):
    """The clock stands still at NOW. The list has how long the thread has slept."""
    slept = []
    clock = SimpleNamespace(monotonic=lambda: NOW, sleep=slept.append)
    monkeypatch.setattr(undo_thread, "time", clock)
    return slept


class Server:
    """A target that answers as many calls of a try as ``answers`` says, and then fails."""

    def __init__(self, answers=1_000):
        self.answers = answers
        self.tries = []
        """Of each try: the lock ids, and the time-out."""

    def run(self, calls, timeout_s, answered):
        self.tries.append(([call.lock_id for call in calls], timeout_s))
        for call in calls[: self.answers]:
            answered(call.lock_id)
        if self.answers < len(calls):
            raise ConnectionError


@pytest.fixture
def thread():
    """One that is never started: a test takes its steps itself."""
    own = UndoThread()
    yield own
    own.drop_jobs()


@pytest.fixture
def enqueue(thread):
    def enqueue(server, *, due=NOW):
        call = CALLS.undo(CALLS.acquire("k", TTL_MS, None).lock_id)
        job = Undo(call, lambda: server, TTL_MS)
        job.due = due
        return thread.enqueue(job, "lock")

    return enqueue


def is_rung(thread):
    return not thread._bell.locked()


def is_spent(job):
    return job.lock_id in spent_ids.of_lock("lock")


# -- starting ---------------------------------------------------------------------------------


def test_a_new_one_does_not_run(thread):
    assert not thread.is_running


def test_a_start_is_seen_at_once_so_that_no_other_caller_starts_a_second_thread(
    thread, monkeypatch
):
    started = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *start: started.append(start))
    thread.start()
    assert thread.is_running
    assert len(started) == 1


def test_the_thread_does_not_keep_its_process_alive(thread, monkeypatch):
    started = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    thread._start_thread()
    assert [each.daemon for each in started] == [True]


# -- enqueuing and sleeping -------------------------------------------------------------------


def test_a_new_job_wakes_the_thread(thread, enqueue):
    enqueue(Server())
    assert is_rung(thread)


def test_a_job_that_is_known_wakes_the_thread_too(thread):
    """An interrupt may have come before it was rung for."""
    call = CALLS.undo(CALLS.acquire("k", TTL_MS, None).lock_id)
    first = Undo(call, Server, TTL_MS)
    assert thread.enqueue(first, "lock") is first
    assert is_rung(thread)
    thread._sleep()
    assert thread.enqueue(Undo(call, Server, TTL_MS), "lock") is first
    assert is_rung(thread)


def test_a_new_thread_sleeps_until_it_is_rung(thread):
    assert not is_rung(thread)


def test_rings_that_came_together_end_one_sleep(thread):
    for _ in range(3):
        thread.ring()
    thread._sleep()
    assert not is_rung(thread)


class SilentBell:
    """A bell that nobody rings."""

    def __init__(self):
        self.waited_s = []

    def release(self): ...

    def acquire(self, timeout):
        self.waited_s.append(timeout)
        return False


@pytest.mark.parametrize(
    ("dues", "waits_s"),
    [([], -1), ([NOW + 5], 5), ([NOW + 5, NOW + 2], 2), ([NOW], 0), ([NOW - 3], 0)],
)
def test_the_thread_sleeps_until_the_first_job_is_due(thread, enqueue, dues, waits_s):
    thread._bell = bell = SilentBell()
    for due in dues:
        enqueue(Server(), due=due)
    thread._sleep()
    assert bell.waited_s == [waits_s]


def test_in_each_round_the_thread_sleeps_then_drops_then_tries(thread, monkeypatch):
    steps = []

    def end():
        steps.append("try")
        raise SystemExit

    monkeypatch.setattr(thread, "_sleep", lambda: steps.append("sleep"))
    monkeypatch.setattr(thread, "_drop_oldest", lambda: steps.append("drop"))
    monkeypatch.setattr(thread, "_try_due", end)
    with pytest.raises(SystemExit):
        thread._run()
    assert steps == ["sleep", "drop", "try"]


def test_the_thread_pauses_after_an_unexpected_error(thread, monkeypatch, slept_s):
    errors = iter([ValueError, SystemExit])

    def fail():
        raise next(errors)

    monkeypatch.setattr(thread, "_sleep", fail)
    with pytest.raises(SystemExit):
        thread._run()
    assert slept_s == [FIRST_PAUSE_S]


# -- too many jobs ----------------------------------------------------------------------------


@pytest.fixture
def at_most_two(monkeypatch):
    monkeypatch.setattr(undo_thread, "MAX_PENDING", 2)


@pytest.mark.usefixtures("at_most_two")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_up_to_the_limit_every_job_stays_and_nothing_is_logged(thread, enqueue, caplog, number):
    for _ in range(number):
        enqueue(Server())
    thread._drop_oldest()
    assert thread.pending == number
    assert caplog.records == []


@pytest.mark.usefixtures("at_most_two")
def test_above_the_limit_the_oldest_are_dropped(thread, enqueue):
    jobs = [enqueue(Server()) for _ in range(4)]
    thread._drop_oldest()
    assert [is_spent(job) for job in jobs] == [False, False, True, True]
    assert [job.tried.is_set() for job in jobs] == [True, True, False, False]
    assert thread.pending == 2


@pytest.mark.usefixtures("at_most_two")
def test_an_overflow_is_logged_once_until_no_job_is_left(thread, enqueue, caplog):
    def overflow():
        while thread.pending < 3:
            enqueue(Server())
        thread._drop_oldest()
        return len(caplog.records)

    enqueue(Server())
    thread._drop_oldest()
    assert [overflow(), overflow()] == [1, 1]
    thread.drop_jobs()
    thread._drop_oldest()
    assert [overflow(), overflow()] == [2, 2]


def test_a_dropped_job_is_no_longer_spent(thread, enqueue):
    job = enqueue(Server())
    thread.drop_jobs()
    assert thread.pending == 0
    assert not is_spent(job)


# -- trying -----------------------------------------------------------------------------------


def test_a_job_is_tried_once_it_is_due(thread, enqueue):
    server = Server()
    due, _later = enqueue(server, due=NOW), enqueue(server, due=NOW + 0.001)
    thread._try_due()
    assert server.tries == [([due.lock_id], 1.0)]


def test_at_exit_all_jobs_are_tried_for_a_shorter_time(thread, enqueue):
    server = Server()
    jobs = [enqueue(server, due=NOW), enqueue(server, due=NOW + 5)]
    thread._exits = True
    thread._try_due()
    assert server.tries == [([job.lock_id for job in jobs], 0.2)]


def test_an_answered_job_is_over(thread, enqueue):
    job = enqueue(Server())
    thread._try_due()
    assert thread.pending == 0
    assert job.tried.is_set()
    assert not is_spent(job)


def test_if_a_try_fails_what_was_not_answered_is_postponed(thread, enqueue):
    server = Server(answers=1)
    answered, unanswered = enqueue(server), enqueue(server)
    thread._try_due()
    assert thread.pending == 1
    assert (answered.due, unanswered.due) == (NOW, NOW + FIRST_PAUSE_S)
    assert unanswered.tried.is_set()
    assert is_spent(unanswered)


def test_if_a_server_cannot_be_found_only_its_jobs_are_postponed(thread, enqueue):
    def not_found():
        raise KeyError

    lost, found = enqueue(Server()), enqueue(Server())
    lost.find_target = not_found
    thread._try_due()
    assert thread.pending == 1
    assert lost.due == NOW + FIRST_PAUSE_S
    assert lost.tried.is_set()
    assert not is_spent(found)


@pytest.mark.parametrize(("ends_at", "is_over"), [(NOW + 0.1, False), (NOW + 0.099, True)])
def test_a_job_is_given_up_if_its_next_try_would_come_after_its_end(
    thread, enqueue, caplog, ends_at, is_over
):
    job = enqueue(Server(answers=0))
    job.until = ends_at
    thread._try_due()
    assert thread.pending == (0 if is_over else 1)
    assert is_spent(job) is not is_over
    assert ("Could not undo" in caplog.text) is is_over


# -- at exit ----------------------------------------------------------------------------------


def test_only_the_try_at_exit_ends_the_wait_for_it(thread):
    thread._try_due()
    assert not thread._tried_at_exit.is_set()
    thread._exits = True
    thread._try_due()
    assert thread._tried_at_exit.is_set()


class RecordedWait(threading.Event):
    def __init__(self):
        super().__init__()
        self.waited_s = []

    def wait(self, timeout=None):
        self.waited_s.append(timeout)
        return True


@pytest.mark.parametrize(
    ("is_running", "has_job", "waited_s"),
    [(True, True, [0.2]), (True, False, []), (False, True, []), (False, False, [])],
)
def test_at_exit_the_thread_is_told_and_waited_for_if_it_runs_and_has_a_job(
    thread, enqueue, is_running, has_job, waited_s
):
    if has_job:
        enqueue(Server(), due=NOW + 5)
        thread._sleep()
    thread._tried_at_exit = RecordedWait()
    thread.is_running = is_running
    thread.try_once_at_exit()
    assert thread._tried_at_exit.waited_s == waited_s
    assert thread._exits is bool(waited_s)
    assert is_rung(thread) is bool(waited_s)
