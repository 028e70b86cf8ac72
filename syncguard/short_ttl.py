"""The warning of a TTL below one second: likely it was meant in seconds.

It is given when a lock is asked for, never while a module is imported, and names the line outside
of SyncGuard that asks, or the function that is decorated. Python shows a warning once a line, so
a busy call site does not fill a log. No I/O.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, Final

__all__ = ["SHORT_TTL_MS", "ShortTTLWarning", "warn_of_short_ttl"]

SHORT_TTL_MS: Final = 1_000

_PASSED_OVER: Final = ("syncguard", "syncguard_celery", "syncguard_django", "contextlib")
"""Between the lock and the line that asks for it; ``contextlib`` for an ``ExitStack``."""
_NAME_FUNCTIONS: Final = ("syncguard_celery", "syncguard_django.decorators")
"""What warns of the function that it decorates, before it asks for the lock."""


class ShortTTLWarning(UserWarning):
    """A TTL is below one second. TTLs are milliseconds: ``ttl_ms=30_000`` is 30 seconds."""


def warn_of_short_ttl(ttl_ms: int, function: Callable[..., object] | None = None) -> None:
    """Warn if the TTL is short: at this function, or at the line outside that asks for the lock.

    The line that calls a task or a view is one of Celery's or Django's, the same for all of
    them: therefore their decorators name the function, and what they ask for then is passed over.
    """
    if ttl_ms >= SHORT_TTL_MS:
        return
    plain = None if function is None else inspect.unwrap(function)
    if isinstance(plain, FunctionType):
        code = plain.__code__
        _warn(ttl_ms, code.co_filename, code.co_firstlineno, plain.__globals__)
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_of(frame, _PASSED_OVER):
        if function is None and _is_of(frame, _NAME_FUNCTIONS):
            return
        frame = frame.f_back
    _warn(ttl_ms, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _is_of(frame: FrameType, modules: tuple[str, ...]) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _warn(ttl_ms: int, filename: str, line: int, names: dict[str, Any]) -> None:
    warnings.warn_explicit(
        f"ttl_ms={ttl_ms} is {ttl_ms} milliseconds, not seconds: the lock expires after"
        f" {ttl_ms / 1000:g} s. Write ttl_ms={ttl_ms}_000 for {ttl_ms} seconds.",
        ShortTTLWarning,
        filename,
        line,
        module=names.get("__name__", "unknown"),
        registry=names.setdefault("__warningregistry__", {}),
    )
