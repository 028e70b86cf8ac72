"""A relay on which one connection stops answering, and every other one works."""

from __future__ import annotations

import socket
from collections.abc import Callable

from relay import Relay


class SilentConnection(Relay):
    """Swallows everything on the connection that sends ``trigger`` first, from then on."""

    trigger = b"\0 no script contains this"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.silent: list[socket.socket] = []

    def _pass(
        self,
        source: socket.socket,
        sink: socket.socket,
        changed: Callable[[bytes], bytes | None],
    ) -> None:
        def swallow(data: bytes) -> bytes | None:
            if self.trigger in data and not self.silent:
                self.silent.append(source)
            return b"" if source in self.silent else changed(data)

        super()._pass(source, sink, swallow)
