"""Parses Redis replies from the bytes that have arrived so far.

For a connection that must never block: a reply may arrive in pieces, and redis-py's own parsers
block until it is complete. Parses the replies of scripts: numbers, text, nil, errors, and lists.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import redis
from redis.exceptions import NoScriptError

try:
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

_PUSH: Final = object()


class Replies(Protocol):
    """Bytes in, replies out. An error reply is returned, not raised. Push messages are skipped."""

    def feed(self, data: bytes) -> list[object]: ...


def reply_reader() -> Replies:
    """The fastest parser there is."""
    return ReplyParser() if hiredis is None else _HiredisReplies()


class _HiredisReplies:
    def __init__(self) -> None:
        self._reader: Any = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=error_reply,
            notEnoughData=_Incomplete,
        )
        self._push: Any = getattr(hiredis, "PushNotification", ())

    def feed(self, data: bytes) -> list[object]:
        reader = self._reader
        reader.feed(data)
        replies: list[object] = []
        while (reply := reader.gets()) is not _Incomplete:
            if not isinstance(reply, self._push):
                replies.append(reply)
        return replies


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
            if reply is not _PUSH:
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
            return _number(rest), position
        if kind == b"*":
            return self._list(_number(rest), position)
        if kind == b">":
            return _PUSH, self._list(_number(rest), position)[1]
        if kind == b"$":
            return self._text(_number(rest), position)
        if kind == b"-":
            return error_reply(rest.decode(errors="replace")), position
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


def _number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError:
        raise redis.InvalidResponse("a number was expected in the reply") from None


def error_reply(text: str) -> redis.ResponseError:
    text = text.removeprefix("ERR ")  # as redis-py does; on Redis 6.2 the script's error follows
    if text.startswith("Protocol error: unauthenticated"):
        # Redis answers so to a long request of a client that has not logged in.
        text = "NOAUTH Authentication required."
    return NoScriptError(text) if text.startswith("NOSCRIPT") else redis.ResponseError(text)
