"""The warning about a TTL below one second: it was probably meant in seconds.

The warning is issued when a lock is acquired, never at import. It points to the calling line
outside of SyncGuard, or to the decorated function. Python shows a warning once per line, so a busy
caller does not fill a log. No I/O.
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

_SKIPPED_MODULES: Final = ("syncguard", "syncguard_celery", "syncguard_django", "contextlib")
"""Not the calling code: frames to skip; ``contextlib`` because of ``ExitStack``."""
_WARNS_AT_FUNCTION: Final = ("syncguard_celery", "syncguard_django.decorators")
"""Modules that issue the warning themselves, for the function that they decorate."""


class ShortTTLWarning(UserWarning):
    """A TTL is below one second. TTLs are milliseconds: ``ttl_ms=30_000`` is 30 seconds."""


def warn_of_short_ttl(ttl_ms: int, function: Callable[..., object] | None = None) -> None:
    """Warn if the TTL is short: at this function, or at the calling line outside of SyncGuard.

    The line that calls a task or a view belongs to Celery or Django and is the same for all of
    them. So their decorators pass the function, and no second warning follows when they lock.
    """
    if ttl_ms >= SHORT_TTL_MS:
        return
    plain = None if function is None else inspect.unwrap(function)
    if isinstance(plain, FunctionType):
        code = plain.__code__
        _warn(ttl_ms, code.co_filename, code.co_firstlineno, plain.__globals__)
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_of(frame, _SKIPPED_MODULES):
        if function is None and _is_of(frame, _WARNS_AT_FUNCTION):
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
