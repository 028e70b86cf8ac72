"""Wake a thread that waits in a selector: any thread may call ``send``."""

from __future__ import annotations

import contextlib
import socket


class WakeUp:
    """Two connected sockets. The selector watches ``fileno()``."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def send(self) -> None:
        # Buffer full: already woken. Closed: nothing waits any more.
        with contextlib.suppress(OSError):
            self._sender.send(b"!")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._receiver.recv(4096)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
