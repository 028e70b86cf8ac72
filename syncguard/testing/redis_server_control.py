"""The commands that ``RedisServer`` sends to its own server, and their count.

Uses a plain socket. redis-py sends additional commands when it connects, and the commands of this
module must be counted separately from those of the test.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

_REPLY_TIMEOUT_S: Final = 5.0
# Short, because it is retried: another process on our port may listen and never answer.
_READY_TIMEOUT_S: Final = 0.25


class RefusedError(Exception):
    """The server answered with an error."""


class Control:
    """Sends commands to one server process, and counts them."""

    def __init__(self, host: str, port: int, password: str | None) -> None:
        self._address = (host, port)
        self._login = [] if password is None else [("AUTH", password)]
        self._own_calls: Counter[str] = Counter()

    def answers_as(self, pid: int) -> bool:
        """Whether the process with this id answers. Raises OSError or RefusedError if none does."""
        # Another Redis server may use the port, and would answer the PING too.
        self._ask("PING", timeout_s=_READY_TIMEOUT_S)
        facts = self._ask("INFO", "server", timeout_s=_READY_TIMEOUT_S)
        return f"\r\nprocess_id:{pid}\r\n".encode() in facts

    def foreign_calls(self) -> dict[str, int]:
        """The number of calls of each command, without those of this object."""
        stats = self._ask("INFO", "commandstats").decode()
        # The reply does not count this INFO itself.
        own = self._own_calls - Counter(info=1)
        return dict(Counter(dict(_parse_commandstats(stats))) - own)

    def _ask(self, *words: str, timeout_s: float = _REPLY_TIMEOUT_S) -> bytes:
        reply = b""
        with (
            socket.create_connection(self._address, timeout_s) as connection,
            connection.makefile("rb") as replies,
        ):
            for command in [*self._login, words]:
                connection.sendall(_encoded(command))
                self._own_calls[command[0].lower()] += 1
                reply = _read_reply(replies)
        return reply


def _encoded(words: Iterable[str]) -> bytes:
    parts = [word.encode() for word in words]
    body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), body)


def _read_reply(replies: BinaryIO) -> bytes:
    """Read a status, an error or a bulk string: the commands here have no other replies."""
    line = replies.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("redis-server closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RefusedError(rest.decode(errors="replace"))
    return replies.read(int(rest) + 2)[:-2] if kind == b"$" else rest


def _parse_commandstats(stats: str) -> Iterator[tuple[str, int]]:
    """From lines such as ``cmdstat_get:calls=3,usec=9,...,rejected_calls=1,failed_calls=0``."""
    for line in stats.splitlines():
        if line.startswith("cmdstat_"):
            name, _, fields = line.removeprefix("cmdstat_").rpartition(":")
            counts = dict(field.split("=") for field in fields.split(","))
            yield name.lower(), int(counts["calls"]) + int(counts.get("rejected_calls", 0))
