"""How a task is interrupted: at the right time, once, and without affecting other handlers."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from syncguard import LockLost
from syncguard_celery.interrupt_on_loss import (
    GreenletInterrupt,
    MainThreadInterrupt,
    NoInterrupt,
    ThreadInterrupt,
    interrupt_here,
    interrupts_disarmed,
)


def in_a_thread(function):
    """Run it in a thread, and return or raise what it does."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(250)
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def fire_soon(interrupt):
    threading.Timer(0.1, interrupt.fire).start()


def test_the_main_thread_is_interrupted_while_it_sleeps():
    interrupt = interrupt_here()
    assert isinstance(interrupt, MainThreadInterrupt)
    fire_soon(interrupt)
    started = time.monotonic()
    with pytest.raises(LockLost):
        interrupt.arm()
        time.sleep(30)
    interrupt.disarm()
    assert time.monotonic() - started < 20


def test_a_thread_is_interrupted_at_its_next_bytecode():
    def loop():
        interrupt = interrupt_here()
        assert isinstance(interrupt, ThreadInterrupt)
        fire_soon(interrupt)
        interrupt.arm()
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                time.sleep(0.001)
        finally:
            interrupt.disarm()

    with pytest.raises(LockLost):
        in_a_thread(loop)


def in_a_greenlet(function):
    """Run it in a greenlet of gevent, with a hub in a separate thread."""
    gevent = pytest.importorskip("gevent")

    def run():
        try:
            return gevent.spawn(function).get()
        finally:
            gevent.get_hub().destroy()

    return in_a_thread(run)


def test_a_greenlet_is_interrupted_while_it_sleeps():
    gevent = pytest.importorskip("gevent")

    def sleep():
        interrupt = interrupt_here()
        assert isinstance(interrupt, GreenletInterrupt)
        fire_soon(interrupt)
        interrupt.arm()
        try:
            gevent.sleep(30)
        except LockLost:
            return "interrupted"
        finally:
            interrupt.disarm()

    assert in_a_greenlet(sleep) == "interrupted"


def test_an_interrupt_in_flight_does_not_reach_a_greenlet_after_disarm():
    gevent = pytest.importorskip("gevent")

    def run():
        interrupt = interrupt_here()
        interrupt.arm()
        interrupt.fire()  # the hub has not run yet
        interrupt.disarm()
        gevent.sleep(0.05)
        with pytest.raises(LockLost):
            interrupt.arm()
        interrupt.disarm()
        return "not interrupted"

    assert in_a_greenlet(run) == "not interrupted"


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_disarmed_task_is_interrupted_when_it_is_armed_again(where):
    def run():
        interrupt = interrupt_here()
        interrupt.arm()
        interrupt.disarm()
        interrupt.fire()
        time.sleep(0.05)
        with pytest.raises(LockLost):  # at the next arm
            interrupt.arm()
        interrupt.disarm()
        interrupt.arm()  # only once
        interrupt.disarm()
        return "not interrupted"

    assert (run() if where == "main" else in_a_thread(run)) == "not interrupted"


class FiringThread(threading.Thread):
    """Fires as soon as ``go`` is not empty.

    Started before the interrupt is armed: ``Thread.start`` itself cannot be interrupted safely,
    and neither can ``Event.set``. Appending to a list can.
    """

    def __init__(self, interrupt):
        super().__init__()
        self.interrupt = interrupt
        self.go = []
        self.start()

    def run(self):
        while not self.go:
            time.sleep(0)
        self.interrupt.fire()


def test_an_interrupt_during_disarm_is_swallowed_in_a_thread():
    def run():
        for _ in range(300):
            interrupt = ThreadInterrupt()
            firing = FiringThread(interrupt)
            with contextlib.suppress(LockLost):
                try:
                    interrupt.arm()
                    firing.go.append(True)
                finally:
                    interrupt.disarm()
            firing.join()
            sum(range(100))  # an interrupt that was not swallowed would be raised here
        return "not interrupted"

    try:
        assert in_a_thread(run) == "not interrupted"
    except LockLost:
        pytest.fail("interrupted outside of arm and disarm")


def test_an_interrupt_during_disarm_is_swallowed_in_the_main_thread():
    for _ in range(300):
        interrupt = MainThreadInterrupt()
        firing = FiringThread(interrupt)
        with contextlib.suppress(LockLost):
            try:
                interrupt.arm()
                firing.go.append(True)
            finally:
                interrupt.disarm()
        firing.join()
    assert not MainThreadInterrupt._waiting


def test_no_interrupt_never_raises():
    interrupt = NoInterrupt()
    interrupt.arm()
    interrupt.fire()
    interrupt.disarm()
    interrupt.arm()
    interrupt.disarm()


def test_a_signal_handler_installed_before_ours_is_still_called(monkeypatch):
    received = []
    before = signal.signal(signal.SIGURG, lambda *_: received.append("foreign"))
    # As in a process that has not run a locked task yet.
    monkeypatch.setattr(MainThreadInterrupt, "_is_installed", False)
    monkeypatch.setattr(MainThreadInterrupt, "_previous_handler", None)
    try:
        interrupt = MainThreadInterrupt()
        signal.raise_signal(signal.SIGURG)
        assert received == ["foreign"]
        fire_soon(interrupt)
        with pytest.raises(LockLost):
            interrupt.arm()
            time.sleep(30)
        interrupt.disarm()
        assert received == ["foreign"]  # the second signal was ours
    finally:
        signal.signal(signal.SIGURG, before)


def test_a_forked_child_that_resets_its_signal_handlers_installs_ours_again():
    program = """
import os, signal
from syncguard_celery.interrupt_on_loss import MainThreadInterrupt, _on_signal
MainThreadInterrupt()
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))
signal.signal(signal.SIGURG, signal.SIG_DFL)  # as a pool process does when it starts
MainThreadInterrupt()
os._exit(0 if signal.getsignal(signal.SIGURG) is _on_signal else 3)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_signal_handler_installed_after_ours_does_not_prevent_the_interrupt(monkeypatch):
    received = []
    monkeypatch.setattr(MainThreadInterrupt, "_is_installed", False)
    monkeypatch.setattr(MainThreadInterrupt, "_previous_handler", None)
    first = MainThreadInterrupt()
    ours = signal.signal(signal.SIGURG, lambda *_: received.append("foreign"))
    try:
        firing = FiringThread(first)
        with pytest.raises(LockLost):
            first.arm()
            firing.go.append(True)
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                time.sleep(0.001)
        first.disarm()
        firing.join()
        second = MainThreadInterrupt()  # installs our handler again
        assert signal.getsignal(signal.SIGURG) is ours
        received.clear()
        signal.raise_signal(signal.SIGURG)
        assert received == ["foreign"]
        fire_soon(second)
        with pytest.raises(LockLost):
            second.arm()
            time.sleep(30)
        second.disarm()
    finally:
        signal.signal(signal.SIGURG, ours)


def test_outer_locks_do_not_interrupt_while_they_are_disarmed():
    outer = MainThreadInterrupt()
    outer.arm()
    with pytest.raises(LockLost), interrupts_disarmed([outer]):
        outer.fire()
        time.sleep(0.05)
        reached = True
    outer.disarm()
    assert reached
