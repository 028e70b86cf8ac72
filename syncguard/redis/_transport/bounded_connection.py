"""A blocking connection of redis-py that obeys a ``Deadline`` while one call uses it.

The time-outs of redis-py hold for one step: for each address of a host, for each reply of the
handshake, for each try of its retry policy. Here each step may take only what is left of one
deadline. For that a connection belongs to a subclass of its class while the call lasts.

Not bounded: the lookup of a host name, and the questions to Sentinel, which have time-outs of their
own.
"""

from __future__ import annotations

import functools
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard._backend.deadline import Deadline
from syncguard.clock import monotonic_ms
from syncguard.errors import NetworkTimeout
from syncguard.redis._transport.connections import Connection

_NO_RETRIES: Final = Retry(NoBackoff(), 0)
_SHORTEST_S: Final = 0.001
_SLACK_S: Final = 0.01
"""A time-out that is longer than the rest by less than this stays: to set one is a system call."""


def bind(connection: Connection, deadline: Deadline) -> None:
    """Let each step of this connection last at most until the deadline, until ``unbind``."""
    held: Any = connection
    held._syncguard_deadline = deadline
    held.__class__ = _bounded_class(type(connection))


def unbind(connection: Connection, own_class: type[Connection]) -> None:
    """Undo ``bind``: the connection has its own time-outs and its own retry policy again."""
    held: Any = connection
    held.__class__ = own_class
    sock = held._sock
    if sock is not None:
        sock.settimeout(held.socket_timeout)


def is_bound(connection: Connection) -> bool:
    return hasattr(type(connection), "_syncguard_connects")


def ends_in_time(connection: Connection, deadline: Deadline) -> bool:
    """Whether the next step ends before the deadline anyway, by the time-out of its socket.

    Then ``bind`` is not needed for it. Not if the deadline has a signal, which must be checked.
    """
    sock = connection._sock  # type: ignore[attr-defined]
    now = None if sock is None or deadline.signal is not None else sock.gettimeout()
    if not now:
        return False
    left_s: float = deadline.at_ms / 1000 - time.monotonic()
    return bool(now <= left_s + _SLACK_S)


@functools.cache
def _bounded_class(kind: type[Any]) -> type[Any]:
    """Return the subclass of a connection class that obeys a deadline."""
    base: Any = object if TYPE_CHECKING else kind

    class Bounded(base):  # type: ignore[misc]
        _syncguard_connects = False

        @property
        def retry(self) -> Retry:
            return _NO_RETRIES

        @property
        def socket_connect_timeout(self) -> float:
            return self._syncguard_connect_s("socket_connect_timeout")

        @property
        def socket_timeout(self) -> float | None:
            # Else its own: redis-py's parsers store this value when a connection is made.
            connects = self._syncguard_connects
            return (
                self._syncguard_connect_s("socket_timeout")
                if connects
                else _own(self, "socket_timeout")
            )

        def _connect(self) -> Any:
            self._syncguard_connects = True
            try:
                if self._syncguard_deadline.signal is not None and hasattr(self, "port"):
                    _wait_until_reachable(self)
                return super()._connect()
            finally:
                del self._syncguard_connects

        def send_packed_command(self, *args: Any, **options: Any) -> Any:
            if self._sock is None:
                self.connect()
            self._syncguard_bound_socket()
            return super().send_packed_command(*args, **options)

        def read_response(self, *args: Any, **options: Any) -> Any:
            if self._syncguard_deadline.signal is not None:
                self._syncguard_wait_for_reply()
            self._syncguard_bound_socket()
            return super().read_response(*args, **options)

        def _syncguard_connect_s(self, name: str) -> float:
            # Never raises: redis-py would not close the socket that it has just made.
            own = _own(self, name)
            deadline: Deadline = self._syncguard_deadline
            left = max(_SHORTEST_S, (deadline.at_ms - monotonic_ms()) / 1000)
            return left if own is None else min(own, left)

        def _syncguard_bound_socket(self) -> None:
            sock = self._sock
            if sock is None:
                return
            own, left = _own(self, "socket_timeout"), _left_s(self._syncguard_deadline)
            if own is not None:
                left = min(own, left)
            now = sock.gettimeout()
            if now is None or not 0 < now <= left + _SLACK_S:
                sock.settimeout(left)

        def _syncguard_wait_for_reply(self) -> None:
            """Wait in slices, and check the signal between them."""
            own = _own(self, "socket_timeout")
            until = None if own is None else time.monotonic() + own
            while not self.can_read(timeout=_slice_s(self._syncguard_deadline)):
                if until is not None and time.monotonic() >= until:
                    self.disconnect()
                    raise redis.TimeoutError("no reply within the socket_timeout")

    Bounded.__name__ = Bounded.__qualname__ = kind.__name__
    return Bounded


def _own(connection: Any, name: str) -> float | None:
    """The connection's own time-out. redis-py 5 stores it as an attribute, 8 behind a property."""
    values = vars(connection)
    value: float | None = values[name] if name in values else values.get(f"_{name}")
    return value


def _left_s(deadline: Deadline) -> float:
    try:
        return deadline.left_s()
    except NetworkTimeout as error:
        # As an error of the connection, so that its text names the server.
        raise redis.TimeoutError("the deadline of the call has passed") from error


def _slice_s(deadline: Deadline) -> float:
    _left_s(deadline)
    return deadline.slice_s()


def _wait_until_reachable(connection: Any) -> None:
    """Open and close a connection without blocking for long, so that a signal can abort it.

    redis-py connects in one blocking step. After this that step is short.
    """
    deadline: Deadline = connection._syncguard_deadline
    error: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        connection.host, connection.port, 0, socket.SOCK_STREAM
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setblocking(False)
            until = time.monotonic() + connection.socket_connect_timeout
            code = probe.connect_ex(address)
            while not select.select([], [probe], [], _slice_s(deadline))[1]:
                if time.monotonic() >= until:
                    break
            else:
                code = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return
            error = OSError(code, "not reachable")
    if error is not None:
        raise error
