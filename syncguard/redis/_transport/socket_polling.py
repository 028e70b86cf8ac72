"""Whether a socket has something to read: asked without waiting, or for a short moment.

A thread that sleeps until the reply is there must be woken, and that can take longer than a Redis
that is near takes to answer. So after a request to such a Redis we look again and again for a
moment, and let others run in between, before we sleep. Nothing depends on what is seen: it is a
hint, and the read that follows waits as long as it must.

Under gevent and eventlet we sleep at once: only that lets the other greenlets run. So we do on
Windows, which knows no stepping aside.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Final

NEAR_S: Final = 250e-6
"""A Redis is near if its reply takes no longer; and no moment of looking is longer."""

Look = Callable[[float], Sequence[object]]
"""What there is to read within so many milliseconds; with 0, without waiting for it."""

_step_aside: Final[Callable[[], None] | None] = getattr(os, "sched_yield", None)


def look_at(sock: socket.socket) -> Look:
    """How to look at a socket. Windows and eventlet have no poll, only select."""
    make_poll = getattr(select, "poll", None)
    if make_poll is None:
        return lambda ms: select.select([sock], [], [], ms / 1000)[0]
    poll = make_poll()
    poll.register(sock, select.POLLIN)
    look: Look = poll.poll
    return look


class Nearness:
    """Whether the last reply came soon enough for looking to pay, and the looking itself."""

    def __init__(self) -> None:
        self._is_near = False
        # What gevent and eventlet put in its place, or leave out, is not the interpreter's own.
        has_own_poll = isinstance(getattr(select, "poll", None), BuiltinFunctionType)
        self._step_aside = _step_aside if has_own_poll else None

    def linger(self, look: Look) -> float:
        """Look for the reply to what was just sent, if that pays. When that was, for ``note``."""
        sent_at = time.perf_counter()
        if self._is_near and self._step_aside is not None:
            until = sent_at + NEAR_S
            while not look(0) and time.perf_counter() < until:
                self._step_aside()
        return sent_at

    def note(self, sent_at: float) -> None:
        """The reply was read just now."""
        self._is_near = time.perf_counter() - sent_at <= NEAR_S
