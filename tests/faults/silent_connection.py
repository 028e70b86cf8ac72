"""A relay on which one connection stops answering, and every other one works."""

from __future__ import annotations

from relay import Relay, Silence


class SilentConnection(Relay):
    """Swallows everything on the connection that sends ``trigger`` first, from then on."""

    trigger = b"\0 no script contains this"
    is_silent = False

    def request(self, data: bytes) -> bytes:
        if self.is_silent or self.trigger not in data:
            return data
        self.is_silent = True
        return Silence()
