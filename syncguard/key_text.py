"""The text of an argument in a key: that of the value a worker gets after JSON.

A view sees ``Color.RED`` or ``(1, 2)`` where a task's worker sees ``"red"`` or ``[1, 2]``. Both
must lock the same key, so both use the text of the second. ``received`` does for the values that
travel in a message what encoding and decoding would do; the tests compare it with Celery's codec.

What has no stable text makes no key: a memory address differs in every process, a set's order
too, and the text of a record (a Django model) is its display name, which changes.
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
    """The text of a value is not the same everywhere; ``field`` of it may well be."""

    def __init__(self, field: str = "id") -> None:
        super().__init__()
        self.field = field


def text_of(value: object) -> str:
    """The text of a value in a key. Raises UnstableText; any other error is the value's own."""
    value = received(value)
    _require_stable(value, str)
    # The text of bytes is their repr, but str() would warn of it under ``python -b``.
    return repr(value) if type(value) is bytes else str(value)


def received(value: object) -> object:
    """What a worker gets of a value. What does not travel as JSON stays what it is."""
    kind = type(value)  # not isinstance: a lazy object passes for what it will be
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
    """A dictionary's key: JSON makes text of it, where it knows how."""
    if name is None:
        return "null"
    if isinstance(name, bool):
        return "true" if name else "false"
    plain = received(name)
    return str(plain) if isinstance(plain, int | float) else plain


_Conversions = tuple[tuple[type, Callable[..., object]], ...]

# A subclass arrives as the plain value: members of enumerations, named tuples, safe strings.
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
