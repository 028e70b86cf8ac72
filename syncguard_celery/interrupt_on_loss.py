"""Interrupting a task whose lock was lost, at any point of its run.

A separate thread learns of the loss. How it interrupts the task depends on where the task runs:

- main thread (prefork, solo): a signal, whose handler raises LockLost. It ends time.sleep and
  blocking reads at once. SIGURG, because processes without a handler ignore it.
- another thread: an asynchronous exception, raised at that thread's next bytecode.
- greenlet: the hub throws the exception into it.

The task is interrupted only between ``arm`` and ``disarm``: never while its lock is being acquired
or released, and never after that. It is interrupted at most once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from syncguard import LockLost

_SIGNAL: Final = getattr(signal, "SIGURG", None)

_SETTLE_CALLS: Final = 3
"""An asynchronous exception that is already set has been raised after this many calls."""


class Interrupt:
    """Interrupts one task, at most once. Subclasses define how."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._armed = False
        self._requested = False
        self._interrupted = False

    def arm(self) -> None:
        """Allow the interrupt from now on. Raises LockLost if one was requested before."""
        with self._guard:
            self._armed = True
            due = self._requested and not self._interrupted
            self._interrupted = self._interrupted or due
        if due:
            raise LockLost()

    def disarm(self) -> None:
        """Disable the interrupt; swallow one that is already in flight."""
        while True:
            try:
                with self._guard:
                    self._armed = False
                    self._cancel()
            except LockLost:
                continue  # leaving the lock's block raises it again
            return

    def fire(self) -> None:
        """Interrupt now, or when ``arm`` is called next. Can be called from any thread."""
        with self._guard:
            self._requested = True
            if self._armed and not self._interrupted:
                self._interrupt()

    def _interrupt(self) -> None: ...

    def _cancel(self) -> None: ...


class NoInterrupt(Interrupt):
    """Never interrupts: for ``on_lost="signal"`` and callables."""

    def fire(self) -> None: ...


class MainThreadInterrupt(Interrupt):
    """Interrupts the main thread by a signal."""

    _waiting: Final[list[MainThreadInterrupt]] = []
    _sent = False
    _previous_handler: Any = None
    _is_installed = False

    def __init__(self) -> None:
        super().__init__()
        if not MainThreadInterrupt._is_installed:
            self._install()

    def arm(self) -> None:
        self._waiting.append(self)
        super().arm()

    def _cancel(self) -> None:
        if self in self._waiting:  # a delivered interrupt has been removed
            self._waiting.remove(self)

    def _interrupt(self) -> None:
        ident = threading.main_thread().ident
        assert ident is not None
        assert _SIGNAL is not None
        MainThreadInterrupt._sent = True
        if signal.getsignal(_SIGNAL) is not _on_signal:
            # Other code replaced our handler: interrupt at the next bytecode, as in any thread.
            # The next task installs our handler again, and it calls theirs.
            MainThreadInterrupt._is_installed = False
            self._interrupted = True
            raise_in_thread(ident)
        signal.pthread_kill(ident, _SIGNAL)

    @classmethod
    def _install(cls) -> None:
        """Install our handler. It also calls the handler that was there before."""
        current = signal.getsignal(_SIGNAL)  # type: ignore[arg-type]
        if current is not _on_signal:
            signal.signal(_SIGNAL, _on_signal)  # type: ignore[arg-type]
            cls._previous_handler = current
        cls._sent = False  # another handler or process got what was sent before
        cls._is_installed = True

    @classmethod
    def forget_installation(cls) -> None:
        """In a forked child: a pool's process resets the signal handlers that it inherited."""
        cls._is_installed = False

    @classmethod
    def deliver(cls, signum: int, frame: FrameType | None) -> None:
        # Runs in the main thread, perhaps during arm or disarm: so it must not acquire _guard.
        sent_by_us, cls._sent = cls._sent, False
        for interrupt in cls._waiting:
            if interrupt._requested and interrupt._armed and not interrupt._interrupted:
                interrupt._interrupted = True
                cls._waiting.remove(interrupt)
                raise LockLost()
        if not sent_by_us and callable(cls._previous_handler):
            cls._previous_handler(signum, frame)


def _on_signal(signum: int, frame: FrameType | None) -> None:
    MainThreadInterrupt.deliver(signum, frame)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MainThreadInterrupt.forget_installation)


class ThreadInterrupt(Interrupt):
    """Interrupts any thread at its next bytecode."""

    def __init__(self) -> None:
        super().__init__()
        self._ident = threading.get_ident()

    def _interrupt(self) -> None:
        self._interrupted = True
        raise_in_thread(self._ident)

    def _cancel(self) -> None:
        # An interrupt in flight cannot be cancelled: after the exception is set to NULL, CPython
        # 3.11 keeps checking for it for ever, and hangs under a tracer. So it is raised here.
        if self._interrupted:
            for _ in range(_SETTLE_CALLS):
                time.sleep(0)


def raise_in_thread(ident: int) -> None:
    """Raise LockLost in that thread, at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(LockLost))


class GreenletInterrupt(Interrupt):
    """Interrupts a greenlet of gevent through its hub."""

    def __init__(self, gevent: Any) -> None:
        super().__init__()
        self._greenlet = gevent.getcurrent()
        self._loop = gevent.get_hub().loop

    def _interrupt(self) -> None:
        self._loop.run_callback_threadsafe(self._throw)

    def _throw(self) -> None:
        # Runs in the hub: the greenlet is waiting, perhaps after its lock was released.
        if self._armed and not self._interrupted:
            self._interrupted = True
            self._greenlet.throw(LockLost())


def runs_under_eventlet() -> bool:
    """Whether eventlet replaced threads by its own: none of the interrupts works there."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))


def interrupt_here() -> Interrupt:
    """The interrupt for the current thread or greenlet."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and isinstance(gevent.getcurrent(), gevent.Greenlet):
        return GreenletInterrupt(gevent)
    if _SIGNAL is not None and threading.get_ident() == threading.main_thread().ident:
        try:
            return MainThreadInterrupt()
        except ValueError:  # an interpreter that cannot handle signals
            pass
    return ThreadInterrupt()


@contextlib.contextmanager
def interrupts_disarmed(interrupts: list[Interrupt]) -> Iterator[None]:
    """Disable the interrupts of outer locks while an inner lock is acquired or released."""
    for interrupt in interrupts:
        interrupt.disarm()
    try:
        yield
    finally:
        lost: LockLost | None = None
        for interrupt in interrupts:
            try:
                interrupt.arm()
            except LockLost as error:
                lost = error
        if lost is not None:
            raise lost
