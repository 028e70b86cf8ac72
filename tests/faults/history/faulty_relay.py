"""A relay that delays, loses, cuts and swallows what passes through it, for some time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Literal

from relay import Last, Relay, Silence

Mode = Literal["pass", "delay", "lose replies", "cut replies", "swallow requests"]


class FaultyRelay(Relay):
    """Forwards everything, except during ``doing``."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._mode: Mode = "pass"
        self._delay_s = 0.0

    @contextlib.contextmanager
    def doing(self, mode: Mode, delay_s: float = 0.0) -> Iterator[None]:
        self._mode, self._delay_s = mode, delay_s
        try:
            yield
        finally:
            self._mode = "pass"

    def cut_all(self) -> None:
        """Close every open connection, in the middle of whatever is on its way."""
        self._end(self._sockets[:])

    def request(self, data: bytes) -> bytes | None:
        # The connection stays open, and nothing ever answers: a firewall that forgot it.
        return Silence() if self._mode == "swallow requests" else data

    def reply(self, data: bytes) -> bytes | None:
        """The server has executed the request already."""
        mode = self._mode
        if mode == "delay":
            time.sleep(self._delay_s)
        elif mode == "lose replies":
            return None
        elif mode == "cut replies":
            return Last(data[: len(data) // 2])
        return data
