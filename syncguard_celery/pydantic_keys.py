"""Tasks with ``pydantic=True``: the function gets models, the message has dictionaries.

A worker validates the arguments before our lock. At publishing nothing validates them, so they
are validated here to make the key.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from syncguard.backend import invalid_argument

if TYPE_CHECKING:
    from celery import Celery

_OPTIONS: Final = {
    "pydantic_strict": "strict",
    "pydantic_context": "context",
    "pydantic_dump_kwargs": "dump_kwargs",
}

KeyOf = Callable[[tuple[object, ...], Mapping[str, object]], str | None]


def pydantic_options(task_options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The validation options among these task options; None without ``pydantic=True``."""
    if task_options.get("pydantic") is not True:
        return None
    return {ours: task_options[name] for name, ours in _OPTIONS.items() if name in task_options}


def validating(
    key_of: KeyOf,
    function: Callable[..., object],
    app: Celery,
    name: str,
    options: dict[str, Any],
) -> KeyOf:
    """``key_of`` for arguments that are not validated yet: validates them first."""
    base: Any = importlib.import_module("celery.app.base")  # the stubs do not have it yet
    pydantic: Any = importlib.import_module("pydantic")

    @functools.wraps(function)
    def key_of_validated(*args: object, **kwargs: object) -> str | None:
        return key_of(args, kwargs)

    validate = base.pydantic_wrapper(app, key_of_validated, name, **options)

    def make(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
        try:
            key: str | None = validate(*args, **kwargs)
        except pydantic.ValidationError:
            # "from None": the text of the ValidationError shows the arguments.
            raise invalid_argument("no key can be made: the arguments are not valid") from None
        return key

    return make
