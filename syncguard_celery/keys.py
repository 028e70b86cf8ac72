"""The key of a call: made from the arguments as the function will see them.

``f('q')`` and ``f(x='q')`` are one call, so arguments are bound and defaults applied first. A key
that cannot be made is an error, never a lock on another name. Nothing here shows an argument's
value in an error: it may be a secret.
"""

from __future__ import annotations

import enum
import inspect
import re
import string
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from kombu.utils import json as kombu_json

from syncguard import normalize_and_validate_key
from syncguard_celery.options import KeySource, refused

_FORMATTER: Final = string.Formatter()
_FIELD: Final = re.compile(r"(?P<name>[^.\[\]]*)(?P<steps>(\.[^.\[\]]+|\[[^\[\]]+\])*)")


class KeyMaker(Protocol):
    """From a call's bound arguments to its key; None means: no lock."""

    def __call__(self, bound: inspect.BoundArguments) -> str | None: ...


class Binder:
    """Binds calls of one function: arguments by name, defaults included.

    ``inspect`` does it for any function and says what is wrong with a call. Most functions have
    plain parameters and most calls are right: for these it is done here, ten times as fast.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        self._names = tuple(p.name for p in parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._is_plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

    def bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        """The bound arguments. TypeError, as in any call, if they do not fit."""
        if self._is_plain:
            # Any: the stubs want an OrderedDict, as inspect made them before Python 3.9.
            values: Any = dict(zip(self._names, args, strict=False))
            if kwargs or len(args) != len(self._names):
                values = self._complete(values, len(args), kwargs)
            if values is not None:
                return inspect.BoundArguments(self.signature, values)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def _complete(
        self, positional: dict[str, object], count: int, kwargs: Mapping[str, object]
    ) -> dict[str, object] | None:
        given = {**positional, **kwargs}
        if len(given) != count + len(kwargs):
            return None  # too many, or one of them twice
        complete = {**self._defaults, **given}
        if len(complete) != len(self._names):
            return None  # one is missing, or unknown
        try:
            return {name: complete[name] for name in self._names}
        except KeyError:
            return None  # one is missing and another unknown


def key_maker(source: KeySource, signature: inspect.Signature) -> KeyMaker:
    """How to make keys for a function with this signature."""
    if isinstance(source, str):
        return _Template(source, signature)
    if callable(source):
        return _Computed(source)
    raise refused("key must be a template such as 'invoice:{invoice_id}', or a callable")


class _Template:
    """``"invoice:{invoice_id}"``: names, attributes and items as in ``str.format``, no more."""

    def __init__(self, template: str, signature: inspect.Signature) -> None:
        self._pieces: list[tuple[str, str | None]] = []
        self._takes_any = _names(signature) is None
        names = _names(signature)
        try:
            parsed = list(_FORMATTER.parse(template))
        except ValueError as error:
            raise refused(f"the key template is malformed: {error}") from None
        for literal, field, spec, conversion in parsed:
            if spec or conversion:
                raise refused("a key template has neither conversions (!r) nor formats (:03d)")
            if field is not None:
                _check_field(field, names)
            self._pieces.append((literal, field))
        if not template:
            raise refused("the key template is empty")

    def __call__(self, bound: inspect.BoundArguments) -> str:
        values = _by_name(bound) if self._takes_any else bound.arguments
        text = ""
        for literal, field in self._pieces:
            text += literal
            if field is not None:
                value = values.get(field)
                plain = type(value) is str or type(value) is int
                text += str(value) if plain else _value(field, values)
        return normalize_and_validate_key(text)


class _Computed:
    """A callable with the task's arguments."""

    def __init__(self, function: Callable[..., str | None]) -> None:
        self._function = function

    def __call__(self, bound: inspect.BoundArguments) -> str | None:
        key = call_with(self._function, bound)
        if key is None:
            return None
        if not isinstance(key, str):
            raise refused(f"the key callable must return a str or None, not {type(key).__name__}")
        return normalize_and_validate_key(key)


def call_with(function: Callable[..., object], bound: inspect.BoundArguments) -> object:
    """Call with a task's arguments: by name where the names fit, by position where not.

    ``lambda self, tenant, **_: ...`` need not repeat every parameter, and ``lambda i: ...`` may
    call them as it likes. Without a signature to read (some builtins) they go by position.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function(*bound.args, **bound.kwargs)
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    if not takes_all:
        named = _by_name(bound)
        try:
            signature.bind(**named)
        except TypeError:
            pass
        else:
            return function(**named)
    return function(*bound.args, **bound.kwargs)


def _names(signature: inspect.Signature) -> set[str] | None:
    """The names a template may use; None if the function takes any."""
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def _by_name(bound: inspect.BoundArguments) -> dict[str, object]:
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            # A parameter comes before an extra argument of its name: f(x, /, **more).
            named = {**named.pop(parameter.name, {}), **named}
    return named


def _check_field(field: str, names: set[str] | None) -> None:
    match = _FIELD.fullmatch(field)
    if match is None:
        raise refused("the key template is malformed: only {name}, {name.attribute}, {name[item]}")
    name = match["name"]
    if not name.isidentifier():
        raise refused("a key template names the task's arguments: {invoice_id}, not {} or {0}")
    if names is not None and name not in names:
        raise refused(f"the key template uses {{{name}}}, but the task has no such argument")
    if "._" in match["steps"]:
        raise refused("a key template does not reach into private attributes")


def _as_received(value: object) -> object:
    """What a worker gets of it: JSON makes lists of tuples, and text of a dictionary's keys."""
    try:
        received: object = kombu_json.loads(kombu_json.dumps(value))
    except (TypeError, ValueError):  # it does not travel as JSON
        return value
    return received


def _value(field: str, values: Mapping[str, object]) -> str:
    try:
        value, _ = _FORMATTER.get_field(field, (), values)
        if isinstance(value, enum.Enum) and isinstance(value, str | int | float):
            value = value.value  # which is what a worker gets of it, after JSON
        elif isinstance(value, tuple | list | dict):
            value = _as_received(value)
        kind = type(value)
        text = str(value)
    except Exception as error:
        # "from None" and no text of it: both may show the argument.
        what = type(error).__name__
        raise refused(f"no key can be made: {{{field}}} raised {what} for this call") from None
    defaults: tuple[object, object] = (object.__str__, object.__repr__)
    if (kind.__str__, kind.__repr__) == defaults:
        # Its text is a memory address: another one in every process, so a lock against nobody.
        raise refused(f"no key can be made: {{{field}}} is a {kind.__name__}, which has no text")
    return text
