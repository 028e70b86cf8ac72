"""Keys made of a call's arguments: ``"invoice:{invoice.pk}"``.

A template may name arguments, their public attributes and their items, and nothing else: no
conversions, no format specifications, no positions. Everything that can be wrong with it is found
when the function is decorated.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Final

from syncguard import LockError

Key = str | Callable[..., str]

_FIELD: Final = re.compile(r"([A-Za-z]\w*)((?:\.[A-Za-z]\w*|\[[^\[\]{}]+\])*)")
_formatter: Final = Formatter()


def key_of(key: Key, function: Callable[..., Any]) -> Callable[..., str]:
    """How to find the key of a call of ``function``: call the result with its arguments."""
    # Django's method_decorator hands over a partial that wraps the unbound method: believing the
    # wrapped one, we would take the request for its self.
    is_partial = isinstance(function, functools.partial)
    signature = inspect.signature(function, follow_wrapped=not is_partial)
    if callable(key):
        return _called(key, signature)
    if not isinstance(key, str):
        raise _invalid("a key is a template or a function")
    return _rendered(key, signature)


def _called(key: Callable[..., str], signature: inspect.Signature) -> Callable[..., str]:
    def find(*args: object, **kwargs: object) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return key(*bound.args, **bound.kwargs)

    return find


def _rendered(template: str, signature: inspect.Signature) -> Callable[..., str]:
    parts = _parsed(template)
    names = {field.partition(".")[0].partition("[")[0] for _, field in parts if field}
    collector = _name_of(signature, inspect.Parameter.VAR_KEYWORD)
    unknown = sorted(names - set(signature.parameters))
    if unknown and collector is None:
        raise _invalid(f"the key template names {unknown[0]!r}, which the function does not take")

    def find(*args: object, **kwargs: object) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values: dict[str, Any] = dict(bound.arguments)
        if collector is not None:
            values = {**values[collector], **values}
        return "".join(literal + _text(field, values) for literal, field in parts)

    return find


def _parsed(template: str) -> list[tuple[str, str | None]]:
    try:
        pieces = list(_formatter.parse(template))
    except ValueError as error:
        raise _invalid(f"the key template is malformed: {error}") from None
    for _, field, specification, conversion in pieces:
        if field is None:
            continue
        if specification or conversion or not _FIELD.fullmatch(field):
            raise _invalid(
                "a key template may hold only {argument}, {argument.attribute} and"
                " {argument[item]}, with public names"
            )
    return [(literal, field) for literal, field, _, _ in pieces]


def _text(field: str | None, values: Mapping[str, Any]) -> str:
    if field is None:
        return ""
    try:
        value, _ = _formatter.get_field(field, (), values)
    except (AttributeError, LookupError, TypeError) as error:
        raise _invalid(f"the arguments of this call have no {{{field}}} for the key") from error
    return str(value)


def _name_of(signature: inspect.Signature, kind: Any) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.kind is kind), None)


def _invalid(message: str) -> LockError:
    return LockError("InvalidArgument", message)
