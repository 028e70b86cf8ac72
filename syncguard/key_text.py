"""The text of an argument in a key: the text of the value after JSON encoding and decoding.

A view has ``Color.RED`` or ``(1, 2)`` where a worker receives ``"red"`` or ``[1, 2]``. Both must
lock the same key, so both use the text of what the worker receives. ``received`` computes that
value without encoding it; the tests compare it with Celery's codec.

A value without a stable text raises: a memory address and the order of a set differ in every
process, and the text of a Django model is its display name, which may change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final
from uuid import UUID

_PLAIN: Final = frozenset({str, int, bool, float, type(None)})
_STABLE: Final = _PLAIN | {datetime, date, time, Decimal, UUID, bytes}
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-f]+", re.IGNORECASE)


class UnstableText(Exception):
    """The text of a value differs between processes; use its attribute ``field`` instead."""

    def __init__(self, field: str = "id") -> None:
        super().__init__()
        self.field = field


def text_of(value: object) -> str:
    """The text of a value in a key. Raises UnstableText, or what the value itself raises."""
    value = received(value)
    _require_stable(value, str)
    # str(bytes) is the repr, but raises a warning under ``python -b``.
    return repr(value) if type(value) is bytes else str(value)


def received(value: object) -> object:
    """The value that a worker receives. A value that JSON cannot encode is returned unchanged."""
    kind = type(value)  # not isinstance: a lazy object pretends to be its future value
    if kind in _PLAIN:
        return value
    for native, convert in _NATIVE:
        if issubclass(kind, native):
            return convert(value)
    if hasattr(value, "__json__"):
        return received(value.__json__())
    for encoded, convert in _ENCODED:
        if issubclass(kind, encoded):
            return convert(value)
    return value


def _require_stable(value: object, text: Callable[[object], str]) -> None:
    """Refuse a value, or one in its lists and dictionaries, whose text is not stable."""
    kind = type(value)
    if kind in _STABLE:
        return
    if kind is list:
        for item in value:  # type: ignore[attr-defined]
            _require_stable(item, repr)
    elif kind is dict:
        for pair in value.items():  # type: ignore[attr-defined]
            _require_stable(list(pair), repr)
    elif hasattr(value, "pk"):
        raise UnstableText("pk")
    elif issubclass(kind, set | frozenset) or _ADDRESS.search(text(value)):
        raise UnstableText


def _name(name: object) -> object:
    """A dictionary's key: JSON converts it to text if it can."""
    if name is None:
        return "null"
    if isinstance(name, bool):
        return "true" if name else "false"
    plain = received(name)
    return str(plain) if isinstance(plain, int | float) else plain


_Conversions = tuple[tuple[type, Callable[..., object]], ...]

# A subclass arrives as the plain value: enum members, named tuples, safe strings.
_NATIVE: Final[_Conversions] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__pos__),
    (list, lambda items: [received(item) for item in items]),
    (tuple, lambda items: [received(item) for item in items]),
    (dict, lambda value: {_name(name): received(item) for name, item in value.items()}),
)
_ENCODED: Final[_Conversions] = (
    (datetime, lambda value: datetime.fromisoformat(datetime.isoformat(value))),
    (date, lambda value: date.fromisoformat(value.isoformat())),
    (time, lambda value: time.fromisoformat(value.isoformat())),
    (Decimal, lambda value: Decimal(str(value))),
    (UUID, lambda value: UUID(hex=value.hex)),
    (bytes, bytes),
)
