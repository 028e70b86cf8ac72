"""A relay between a client and its server, for tests of network faults.

Forwards everything in both directions. A subclass changes the bytes in ``request`` and ``reply``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Last(bytes):
    """The last bytes of a connection: after them it is closed."""


class Silence(bytes):
    """From here on no byte of this direction arrives, and the connection stays open.

    TCP never loses bytes in the middle: what comes later must not arrive, either.
    """


def _swallowed(_data: bytes) -> bytes:
    return b""


class Relay:
    """Listens on its own port during the ``with`` block."""

    host = "127.0.0.1"

    def __init__(self, target_port: int) -> None:
        self._target = (self.host, target_port)
        self._listener = socket.create_server((self.host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def request(self, data: bytes) -> bytes | None:
        """The bytes to send to the server; None closes the connection."""
        return data

    def reply(self, data: bytes) -> bytes | None:
        """The bytes to send to the client; None closes the connection."""
        return data

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def connect_to(self, port: int) -> None:
        """Connect new clients to this port. Open connections stay."""
        self._target = (self.host, port)

    def close(self) -> None:
        # The listener first: until its thread has ended, a connection may be added.
        self._end([self._listener])
        self._threads[0].join()
        self._end(self._sockets)
        for thread in self._threads:
            thread.join()

    def _end(self, sockets: list[socket.socket]) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                server = socket.create_connection(self._target)
                self._sockets.append(server)
                self._start(self._pass, client, server, self.request)
                self._start(self._pass, server, client, self.reply)

    def _pass(
        self,
        source: socket.socket,
        sink: socket.socket,
        changed: Callable[[bytes], bytes | None],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                passed = changed(data)
                if passed is None:
                    break
                sink.sendall(passed)
                if isinstance(passed, Last):
                    break
                if isinstance(passed, Silence):
                    changed = _swallowed
            sink.shutdown(socket.SHUT_RDWR)


class SlowRelay(Relay):
    """Sends each reply late: the whole handshake takes much longer than each of its steps."""

    def reply(self, data: bytes) -> bytes:
        time.sleep(0.4)
        return data
