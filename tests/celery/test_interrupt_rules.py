"""Each decision of an interrupt: nothing is sent, raised in a thread or thrown for real."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from syncguard import LockLost
from syncguard_celery import interrupt_on_loss
from syncguard_celery.interrupt_on_loss import (
    GreenletInterrupt,
    Interrupt,
    MainThreadInterrupt,
    ThreadInterrupt,
    runs_under_eventlet,
)


class RecordedInterrupt(Interrupt):
    def __init__(self):
        super().__init__()
        self.count = 0

    def _interrupt(self):
        self.count += 1


@pytest.fixture
def before_ours(monkeypatch):
    """The calls of the handler that was there before ours. All is restored after the test."""
    calls = []
    kept = signal.signal(signal.SIGURG, lambda *_arguments: calls.append(1))
    monkeypatch.setattr(MainThreadInterrupt, "_is_installed", False)
    monkeypatch.setattr(MainThreadInterrupt, "_previous_handler", None)
    monkeypatch.setattr(MainThreadInterrupt, "_sent", False)
    yield calls
    signal.signal(signal.SIGURG, kept)
    MainThreadInterrupt._waiting.clear()


@pytest.fixture
def sent(monkeypatch):
    """What was sent to the main thread."""
    sent = []
    monkeypatch.setattr(signal, "pthread_kill", lambda *to: sent.append(to))
    return sent


@pytest.fixture
def raised(monkeypatch):
    """The threads in which LockLost was raised."""
    raised = []
    monkeypatch.setattr(interrupt_on_loss, "raise_in_thread", raised.append)
    return raised


def test_an_interrupt_before_the_task_is_armed_waits_until_then():
    interrupt = RecordedInterrupt()
    interrupt.fire()
    assert interrupt.count == 0
    with pytest.raises(LockLost):
        interrupt.arm()
    interrupt.fire()
    assert interrupt.count == 0, "interrupted once"


@pytest.mark.usefixtures("before_ours")
class TestMainThread:
    def test_the_handler_is_installed_once(self, monkeypatch):
        MainThreadInterrupt()
        assert signal.getsignal(signal.SIGURG) is interrupt_on_loss._on_signal
        monkeypatch.setattr(signal, "getsignal", lambda _number: pytest.fail("asked again"))
        MainThreadInterrupt()

    def test_a_forked_child_installs_the_handler_again(self):
        """A process of a pool resets the handlers that it inherited."""
        MainThreadInterrupt()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGURG, signal.SIG_DFL)
            MainThreadInterrupt()
            os._exit(signal.getsignal(signal.SIGURG) is not interrupt_on_loss._on_signal)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0

    def test_our_own_signal_does_not_reach_the_handler_before_ours(self, before_ours, sent):
        interrupt = MainThreadInterrupt()
        interrupt.arm()
        interrupt.fire()
        assert len(sent) == 1
        interrupt.disarm()
        MainThreadInterrupt.deliver(signal.SIGURG, None)
        assert before_ours == []

    @pytest.mark.usefixtures("sent")
    def test_a_signal_of_somebody_else_reaches_the_handler_before_ours(self, before_ours):
        interrupt = MainThreadInterrupt()
        interrupt.arm()
        MainThreadInterrupt.deliver(signal.SIGURG, None)
        assert before_ours == [1]
        interrupt.fire()
        with pytest.raises(LockLost):
            MainThreadInterrupt.deliver(signal.SIGURG, None)
        MainThreadInterrupt.deliver(signal.SIGURG, None)
        assert before_ours == [1, 1], "ours was used up by its own signal"

    def test_a_handler_that_cannot_be_called_is_not_called(self, monkeypatch):
        MainThreadInterrupt()
        monkeypatch.setattr(MainThreadInterrupt, "_previous_handler", signal.SIG_DFL)
        MainThreadInterrupt.deliver(signal.SIGURG, None)

    def test_a_task_is_interrupted_once(self, sent):
        interrupt = MainThreadInterrupt()
        interrupt.arm()
        interrupt.fire()
        with pytest.raises(LockLost):
            MainThreadInterrupt.deliver(signal.SIGURG, None)
        assert MainThreadInterrupt._waiting == []
        interrupt.fire()
        assert len(sent) == 1
        interrupt.disarm()

    @pytest.mark.usefixtures("sent")
    def test_a_task_whose_handler_was_replaced_is_interrupted_once(self, raised):
        interrupt = MainThreadInterrupt()
        interrupt.arm()
        signal.signal(signal.SIGURG, lambda *_arguments: None)
        interrupt.fire()
        interrupt.fire()
        assert len(raised) == 1
        assert not MainThreadInterrupt._is_installed, "the next task installs it again"


class TestThread:
    def test_a_thread_is_interrupted_once(self, raised):
        interrupt = ThreadInterrupt()
        interrupt.arm()
        interrupt.fire()
        interrupt.fire()
        assert len(raised) == 1

    @pytest.mark.usefixtures("raised")
    @pytest.mark.parametrize(("is_interrupted", "calls"), [(True, 3), (False, 0)])
    def test_disarm_waits_for_an_interrupt_in_flight(self, monkeypatch, is_interrupted, calls):
        slept = []
        monkeypatch.setattr(interrupt_on_loss, "time", SimpleNamespace(sleep=slept.append))
        interrupt = ThreadInterrupt()
        interrupt.arm()
        if is_interrupted:
            interrupt.fire()
        interrupt.disarm()
        assert slept == [0] * calls


class TestGreenlet:
    def test_a_greenlet_is_interrupted_once_and_only_while_it_is_armed(self):
        thrown = []
        gevent = SimpleNamespace(
            getcurrent=lambda: SimpleNamespace(throw=thrown.append),
            get_hub=lambda: SimpleNamespace(loop=SimpleNamespace(run_callback_threadsafe=None)),
        )
        interrupt = GreenletInterrupt(gevent)
        interrupt._throw()
        assert thrown == []
        interrupt.arm()
        interrupt._throw()
        interrupt._throw()
        assert len(thrown) == 1


@pytest.mark.parametrize(
    ("patcher", "expected"),
    [
        (None, False),
        (SimpleNamespace(is_monkey_patched=lambda _module: False), False),
        (SimpleNamespace(is_monkey_patched=lambda module: module == "thread"), True),
    ],
)
def test_eventlet_counts_only_if_it_replaced_threads(monkeypatch, patcher, expected):
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    assert runs_under_eventlet() is expected
