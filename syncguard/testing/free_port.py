"""Chooses a port for a server of the tests.

The port is below the ports that the system gives to outgoing connections. Otherwise a connection of
another test could get the port of a server that was killed, and the server could not start again.
"""

from __future__ import annotations

import secrets
import socket
from typing import Final

# Linux gives outgoing connections ports from 32,768 on, other systems from 49,152. A node of a
# Redis Cluster also listens 10,000 above its port.
_LOWEST: Final = 10_000
_HIGHEST: Final = 22_767


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now. Another process may bind it before you do."""
    while True:
        # Not by the module random: plugins of pytest give every test process the same seed.
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)
        with socket.socket() as probe:
            # As servers do: a port whose last connections have just ended is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
