"""Packs a command as Redis reads it. Text is UTF-8, whatever encoding the client has.

The same key must have the same name in Redis for every client, blocking or asyncio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Command = tuple[str, ...]


def _hiredis_packer() -> Callable[[Command], bytes] | None:
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    pack: Callable[[Any], bytes] = pack_command
    return pack


def pack_in_python(command: Command) -> bytes:
    """The same as hiredis's packer, which is faster."""
    parts = [b"*%d\r\n" % len(command)]
    for word in command:
        encoded = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(encoded), encoded))
    return b"".join(parts)


pack: Final[Callable[[Command], bytes]] = _hiredis_packer() or pack_in_python
