"""The warning about locks that are acquired inside a transaction."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Final

_PACKAGE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD_LIBRARY: Final = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_warned: Final[set[object]] = set()

AFTER_A_QUERY: Final = (
    "lock() was entered inside a transaction that has already run a query: what the transaction"
    " read before is not protected by the lock. Acquire the lock first:"
    " with lock(...), transaction.atomic(): ..."
)
MANY: Final = (
    "one transaction holds {count} locks until it ends: acquire fewer, or pass until='block' where"
    " a lock need not last until the commit"
)
VIEW: Final = (
    "{view} is locked inside the transaction of ATOMIC_REQUESTS: what the request read before is"
    " not protected by the lock. Put @locked above every other decorator of the view, or use"
    ' @method_decorator(locked(...), name="dispatch") on its class'
)


class LockOrderWarning(RuntimeWarning):
    """A lock was acquired inside a transaction. The right order: the lock, then the transaction."""


def warn_at_call_site(message: str) -> None:
    """Warn once for each line of the user's code that calls us."""
    frame = _call_site()
    site = (frame.f_code.co_filename, frame.f_lineno, message)
    if site in _warned:
        return
    warnings.warn_explicit(
        message,
        LockOrderWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        source=None,
    )
    _warned.add(site)  # after the warning: if warnings are errors, each call must fail


def warn_of_view(view: str) -> None:
    """Warn once for each view that its lock is acquired inside the request's transaction."""
    if view in _warned:
        return
    warnings.warn(VIEW.format(view=view), LockOrderWarning, stacklevel=2)
    _warned.add(view)


def _call_site() -> FrameType:
    """The innermost frame outside of this package and of the standard library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_between(filename: str) -> bool:
    if filename.startswith(_PACKAGE):
        return True
    return filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
