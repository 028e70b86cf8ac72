"""Who holds a lock, for people: ``shop.views.settle(pid 4711)@web1``.

Used for every lock without a ``holder``. Contains names from the code, the process and the host,
and never arguments: labels are shown in places where keys are not.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

MAX_BYTES: Final = 256
"""The longest label that the core accepts."""

_NAME_BYTES: Final = 160
_HOST_BYTES: Final = 60
_MODULE_LEVEL: Final = "<module>"
_OURS: Final = frozenset({"contextlib", "syncguard", "syncguard_celery", "syncguard_django"})
"""Packages whose functions acquire locks only for their callers."""


def label_of(function: Callable[..., Any]) -> str:
    """The label of a function or a view that is locked as a whole."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    # Django's method_decorator wraps a bound method in a partial. The class of the object is more
    # useful than the class that defines the method, which may be Django's own View.dispatch.
    owner = getattr(getattr(function, "func", function), "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        return _label(getattr(function, "__module__", ""), name)
    cls = owner if isinstance(owner, type) else type(owner)
    return _label(cls.__module__, f"{cls.__qualname__}.{name.rpartition('.')[2]}")


def label_of_caller() -> str:
    """The label of the nearest function on the stack that is outside of our packages."""
    frame: FrameType = sys._getframe(1)
    while _package_of(frame) in _OURS and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    module = frame.f_globals.get("__name__", "")
    if name == _MODULE_LEVEL:
        # The lock is created while a module is imported, for instance as a decorator. The process
        # that acquires it may be a child that is forked later, so the label has no process id.
        return f"{_cut(str(module), _NAME_BYTES)}@{_host()}"
    return _label(str(module), name)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _label(module: str, name: str) -> str:
    return f"{_name(module, name)}(pid {os.getpid()})@{_host()}"


@functools.lru_cache(maxsize=1024)
def _name(module: str, name: str) -> str:
    return _cut(f"{module}.{name.replace('<locals>.', '')}", _NAME_BYTES)


@functools.cache
def _host() -> str:
    return _cut(socket.gethostname(), _HOST_BYTES) or "localhost"


def _cut(text: str, limit: int) -> str:
    """The printable end of the text, which is more specific than its beginning."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return printable.encode(errors="replace")[-limit:].decode(errors="ignore")
