"""Background threads: one waits for the next job, and callers start none."""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time

import pytest

from syncguard._lock import background_threads
from syncguard._lock.background_threads import BackgroundThreads
from syncguard._lock.callback_queue import CallbackQueue


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)


def threads_of(threads):
    own = [t for t in threading.enumerate() if t.name == "syncguard-background"]
    # A thread that is about to end has no target any more.
    targets = [(thread, getattr(thread, "_target", None)) for thread in own]
    return [thread for thread, target in targets if getattr(target, "__self__", None) is threads]


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(background_threads, "_IDLE_S", 0.05)
    threads = BackgroundThreads()
    yield threads
    # All end: those that have nothing to do, and those that CPython 3.10 lets wait for a job.
    monkeypatch.setattr(threads, "_start_thread", lambda: None)
    monkeypatch.setattr(threads, "_is_spare", lambda: True)
    for _ in range(100):
        threads._jobs.put(sys.exit)
    wait_until(lambda: not threads_of(threads))


@pytest.fixture
def pool(threads, monkeypatch):
    """The threads that callback queues use."""
    monkeypatch.setattr(background_threads, "_threads", threads)
    return threads


@pytest.fixture
def starters(monkeypatch):
    """The threads that called Thread.start()."""
    idents, start = [], threading.Thread.start

    def record(thread):
        idents.append(threading.get_ident())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    return idents


def run(threads, job):
    """Run a job, wait for its end, and return the thread that ran it."""
    ran_on, ended = [], threading.Event()

    def wrapped():
        ran_on.append(threading.current_thread())
        try:
            return job()
        finally:
            ended.set()

    threads.run(wrapped)
    assert ended.wait(20)
    return ran_on[0]


def test_a_job_runs_on_a_daemon_thread(threads):
    thread = run(threads, lambda: None)
    assert thread.daemon
    assert thread is not threading.current_thread()


def test_a_caller_starts_no_thread_itself(threads, starters):
    blocked = threading.Event()
    for _ in range(5):
        threads.run(lambda: blocked.wait(20))
    run(threads, lambda: None)
    blocked.set()
    assert len(starters) >= 6
    assert threading.get_ident() not in starters


def test_a_job_does_not_wait_for_the_others(threads):
    all_run = threading.Barrier(10)
    results = []
    for _ in range(9):
        threads.run(lambda: results.append(all_run.wait(20)))
    run(threads, lambda: results.append(all_run.wait(20)))
    wait_until(lambda: sorted(results) == list(range(10)))


def test_all_threads_end_when_idle_but_one_that_waits(threads):
    all_run = threading.Barrier(4)
    ran_on = []

    def job():
        ran_on.append(threading.current_thread())
        all_run.wait(20)

    for _ in range(4):
        threads.run(job)
    wait_until(lambda: len(ran_on) == 4)
    wait_until(lambda: threads._waiting == 1)
    wait_until(lambda: sum(thread.is_alive() for thread in ran_on) <= 1)
    run(threads, lambda: None)


def test_a_job_that_fails_is_logged_by_class_and_not_by_text(threads, caplog):
    run(threads, lambda: {}["a secret"])
    wait_until(lambda: "KeyError" in caplog.text)
    assert "secret" not in caplog.text
    run(threads, lambda: None)


def test_a_job_that_exits_does_not_end_the_threads(threads):
    def leave():
        raise SystemExit

    for _ in range(3):
        run(threads, leave)
    run(threads, lambda: None)
    wait_until(lambda: threads._waiting == 1)


def test_a_waiting_thread_that_was_killed_is_replaced(threads):
    run(threads, lambda: None)
    wait_until(lambda: threads._waiting == 1)
    # As an interpreter tool would: it is raised when the thread looks for a job again.
    wait_until(lambda: len(threads_of(threads)) == 1)
    (killed,) = threads_of(threads)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(killed.ident), ctypes.py_object(SystemExit)
    )
    killed.join(20)
    assert not killed.is_alive()
    assert run(threads, lambda: None) is not killed


def test_without_an_available_thread_the_caller_is_told(threads, monkeypatch):
    def refuse(*_args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        threads.run(lambda: None)


def test_a_thread_that_could_not_start_is_started_by_the_next_job(threads, monkeypatch):
    def refuse(_thread):
        refused.set()
        raise RuntimeError("can't start new thread")

    refused, results = threading.Event(), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        threads.run(lambda: results.append("first"))
        assert refused.wait(20)
        wait_until(lambda: threads._waiting == 0)
    threads.run(lambda: results.append("second"))
    wait_until(lambda: sorted(results) == ["first", "second"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("pool")
def test_a_forked_child_has_threads_and_callbacks_of_its_own():
    blocked, callbacks = threading.Event(), CallbackQueue(1)
    callbacks.put(lambda: blocked.wait(20))
    callbacks.put(lambda: os._exit(1))  # the parent's, and not yet called
    pid = os.fork()
    if not pid:
        done = threading.Event()
        callbacks.put(done.set)
        os._exit(0 if done.wait(20) else 2)
    assert os.waitpid(pid, 0)[1] == 0
    callbacks._callbacks.clear()
    blocked.set()


@pytest.mark.usefixtures("pool")
class TestCallbackQueue:
    def test_with_one_thread_callbacks_keep_their_order(self):
        seen, callbacks = [], CallbackQueue(1)
        for n in range(500):
            callbacks.put(lambda n=n: seen.append(n))
        wait_until(lambda: len(seen) == 500)
        assert seen == list(range(500))

    def test_at_most_so_many_run_at_once(self):
        running, most, guard, callbacks = 0, 0, threading.Lock(), CallbackQueue(3)
        called = []

        def callback():
            nonlocal running, most
            with guard:
                running += 1
                most = max(most, running)
            time.sleep(0.001)
            with guard:
                running -= 1
                called.append(1)

        for _ in range(100):
            callbacks.put(callback)
        wait_until(lambda: len(called) == 100)
        assert most <= 3

    def test_a_slow_callback_does_not_delay_the_others(self):
        others_done, seen, callbacks = threading.Event(), [], CallbackQueue(2)
        callbacks.put(lambda: seen.append(others_done.wait(20)))
        for n in range(50):
            callbacks.put(lambda n=n: n == 49 and others_done.set())
        wait_until(lambda: seen)
        assert seen == [True]

    @pytest.mark.parametrize("error", [SystemExit, ZeroDivisionError])
    def test_a_callback_that_raises_does_not_stop_the_others(self, error):
        def fail():
            raise error

        seen, callbacks = [], CallbackQueue(1)
        for n in range(20):
            callbacks.put(fail)
            callbacks.put(lambda n=n: seen.append(n))
        wait_until(lambda: seen == list(range(20)))

    def test_every_callback_is_called_once_whoever_enqueues(self):
        seen, callbacks = [], CallbackQueue(4)

        def enqueue(begin):
            for n in range(begin, begin + 500):
                callbacks.put(lambda n=n: seen.append(n))

        callers = [threading.Thread(target=enqueue, args=(500 * n,)) for n in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        wait_until(lambda: len(seen) >= 2_000)
        assert sorted(seen) == list(range(2_000))

    def test_without_an_available_thread_the_callback_is_called_here(self, monkeypatch):
        def refuse(*_args):
            raise RuntimeError("can't start new thread")

        seen, callbacks = [], CallbackQueue(2)
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", refuse)
            callbacks.put(lambda: seen.append(threading.get_ident()))
        assert seen == [threading.get_ident()]
        callbacks.put(lambda: seen.append(threading.get_ident()))
        wait_until(lambda: len(seen) == 2)
        assert seen[1] != threading.get_ident()
