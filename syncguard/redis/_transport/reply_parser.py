"""Parses Redis replies from the bytes that have arrived so far.

For a connection that must never block: a reply may arrive in pieces, and redis-py's own parsers
block until it is complete. Parses the replies of scripts: numbers, text, nil, errors, and lists.
"""

from __future__ import annotations

import redis
from redis.exceptions import NoScriptError


class _Incomplete(Exception):
    """The reply has not arrived completely."""


class ReplyParser:
    """Bytes in, replies out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[object]:
        """Return the replies that are complete now. An error reply is returned, not raised."""
        self._buffer += data
        replies: list[object] = []
        position = 0
        while position < len(self._buffer):
            try:
                reply, position = self._parse(position)
            except _Incomplete:
                break
            replies.append(reply)
        del self._buffer[:position]
        return replies

    def _parse(self, position: int) -> tuple[object, int]:
        end = self._buffer.find(b"\r\n", position)
        if end < 0:
            raise _Incomplete
        kind, rest = self._buffer[position : position + 1], bytes(self._buffer[position + 1 : end])
        position = end + 2
        if kind == b":":
            return int(rest), position
        if kind == b"*":
            return self._list(int(rest), position)
        if kind == b"$":
            return self._text(int(rest), position)
        if kind == b"-":
            return _error(rest.decode(errors="replace")), position
        if kind == b"+":
            return rest, position
        if kind == b"_":
            return None, position
        raise redis.InvalidResponse("unexpected type of reply to a script")

    def _list(self, length: int, position: int) -> tuple[object, int]:
        items: list[object] = []
        for _ in range(length):
            item, position = self._parse(position)
            items.append(item)
        return (items if length >= 0 else None), position

    def _text(self, length: int, position: int) -> tuple[object, int]:
        if length < 0:
            return None, position
        end = position + length
        if len(self._buffer) < end + 2:
            raise _Incomplete
        return bytes(self._buffer[position:end]), end + 2


def _error(text: str) -> redis.ResponseError:
    text = text.removeprefix("ERR ")  # as redis-py does; on Redis 6.2 the script's error follows
    return NoScriptError(text) if text.startswith("NOSCRIPT") else redis.ResponseError(text)
