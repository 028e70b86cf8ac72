"""Stopping a task whose lock was lost, wherever it is.

The news comes on a thread of its own. How to reach the task depends on where that runs:

- main thread (prefork, solo): a signal, whose handler raises LockLost. It ends time.sleep and
  blocking reads at once. SIGURG, because it is ignored where nobody handles it.
- another thread: an asynchronous exception, raised at that thread's next bytecode.
- greenlet: thrown in by the hub.

Between ``arm`` and ``disarm`` the task may be struck, and at no other time: never while its lock
is being acquired or released, never after. It is struck once at most.
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
"""Calls after which an asynchronous exception that was set before has been raised."""


class Interrupt:
    """Strikes one task, once at most. How, its kinds say."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._armed = False
        self._requested = False
        self._interrupted = False

    def arm(self) -> None:
        """From here on the task may be struck. Raises LockLost if it should have been already."""
        with self._guard:
            self._armed = True
            due = self._requested and not self._interrupted
            self._interrupted = self._interrupted or due
        if due:
            raise LockLost()

    def disarm(self) -> None:
        """From here on it may not. Swallows one that is already in flight."""
        while True:
            try:
                with self._guard:
                    self._armed = False
                    self._call_off()
            except LockLost:
                continue  # leaving the lock's block will say so again
            return

    def fire(self) -> None:
        """Strike now, or as soon as the task is armed again. From any thread."""
        with self._guard:
            self._requested = True
            if self._armed and not self._interrupted:
                self._interrupt()

    def _interrupt(self) -> None: ...

    def _call_off(self) -> None: ...


class NoInterrupt(Interrupt):
    """Strikes nobody, now or later: for ``on_lost="signal"`` and callables."""

    def fire(self) -> None: ...


class MainThreadInterrupt(Interrupt):
    """Reaches the main thread by a signal."""

    _waiting: Final[list[MainThreadInterrupt]] = []
    _sent = False
    _previous: Any = None
    _is_installed = False

    def __init__(self) -> None:
        super().__init__()
        if not MainThreadInterrupt._is_installed:
            self._install()

    def arm(self) -> None:
        self._waiting.append(self)
        super().arm()

    def _call_off(self) -> None:
        if self in self._waiting:  # it is not, if the interrupt was delivered
            self._waiting.remove(self)

    def _interrupt(self) -> None:
        ident = threading.main_thread().ident
        assert ident is not None
        assert _SIGNAL is not None
        MainThreadInterrupt._sent = True
        if signal.getsignal(_SIGNAL) is not _on_signal:
            # Somebody took the signal after us: as for any thread, at the next bytecode. The
            # next task installs us again, before them.
            MainThreadInterrupt._is_installed = False
            self._interrupted = True
            raise_in_thread(ident)
        signal.pthread_kill(ident, _SIGNAL)

    @classmethod
    def _install(cls) -> None:
        """Make sure that we hear the signal, and whoever did before still does."""
        current = signal.getsignal(_SIGNAL)  # type: ignore[arg-type]
        if current is not _on_signal:
            signal.signal(_SIGNAL, _on_signal)  # type: ignore[arg-type]
            cls._previous = current
        cls._sent = False  # what was sent before, another handler or process has heard
        cls._is_installed = True

    @classmethod
    def forget_installation(cls) -> None:
        """In a forked child: a pool's process begins by forgetting the signals it inherited."""
        cls._is_installed = False

    @classmethod
    def deliver(cls, signum: int, frame: FrameType | None) -> None:
        # In the main thread, perhaps in the middle of arm or disarm: so no lock may be taken here.
        ours, cls._sent = cls._sent, False
        for interrupt in cls._waiting:
            if interrupt._requested and interrupt._armed and not interrupt._interrupted:
                interrupt._interrupted = True
                cls._waiting.remove(interrupt)
                raise LockLost()
        if not ours and callable(cls._previous):
            cls._previous(signum, frame)


def _on_signal(signum: int, frame: FrameType | None) -> None:
    MainThreadInterrupt.deliver(signum, frame)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=MainThreadInterrupt.forget_installation)


class ThreadInterrupt(Interrupt):
    """Reaches any thread at its next bytecode."""

    def __init__(self) -> None:
        super().__init__()
        self._ident = threading.get_ident()

    def _interrupt(self) -> None:
        self._interrupted = True
        raise_in_thread(self._ident)

    def _call_off(self) -> None:
        # An interrupt in flight cannot be called off: setting the exception to NULL leaves
        # CPython 3.11 looking for it for ever, and under a tracer hanging. So let it be raised
        # here.
        if self._interrupted:
            for _ in range(_SETTLE_CALLS):
                time.sleep(0)


def raise_in_thread(ident: int) -> None:
    """Raise LockLost there, at the next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(LockLost))


class GreenletInterrupt(Interrupt):
    """Reaches a greenlet of gevent through its hub."""

    def __init__(self, gevent: Any) -> None:
        super().__init__()
        self._greenlet = gevent.getcurrent()
        self._loop = gevent.get_hub().loop

    def _interrupt(self) -> None:
        self._loop.run_callback_threadsafe(self._throw)

    def _throw(self) -> None:
        # In the hub: the greenlet is waiting somewhere, perhaps not under the lock any more.
        if self._armed and not self._interrupted:
            self._interrupted = True
            self._greenlet.throw(LockLost())


def interrupt_here() -> Interrupt:
    """The interrupt that reaches whatever runs this."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and isinstance(gevent.getcurrent(), gevent.Greenlet):
        return GreenletInterrupt(gevent)
    if _SIGNAL is not None and threading.get_ident() == threading.main_thread().ident:
        try:
            return MainThreadInterrupt()
        except ValueError:  # an interpreter that may not handle signals
            pass
    return ThreadInterrupt()


@contextlib.contextmanager
def interrupts_disarmed(interrupts: list[Interrupt]) -> Iterator[None]:
    """Let no outer lock's loss strike while an inner lock is taken or let go."""
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
