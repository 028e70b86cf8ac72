"""The backend of a task's locks: from the decorator, else the app's setting, else Django's.

The Django adapter is imported by name and only when needed: this package works without it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from syncguard import LockBackend, backends
from syncguard.backend import invalid_argument
from syncguard_celery.options import (
    BackendSource,
    LockOptions,
    is_backend,
    require_backend,
    require_backend_source,
)

if TYPE_CHECKING:
    from celery import Celery

SETTING: Final = "syncguard_backend"

_DJANGO: Final = "syncguard_django"
_NO_BACKEND: Final = (
    "this task has no lock backend: pass backend= or using=, or set app.conf.syncguard_backend"
)

_backends: Final[dict[object, LockBackend]] = {}
_backends_guard: Final = threading.Lock()
_CACHED: Final = "_syncguard_backend"
"""The attribute of an app that caches its setting and the backend made from it."""


def backend_of(options: LockOptions, app: Celery) -> LockBackend:
    """The backend for a task with these options in this app."""
    if options.backend is not None:
        return _resolved(options.backend)
    if options.using is not None:
        return _django_backend(options.using)
    # app.conf.get takes 3 to 4 microseconds, reading the changed settings 0.2 (measured).
    changed: BackendSource | None = (app.conf.changes or {}).get(SETTING)
    cached: tuple[BackendSource | None, LockBackend] | None = app.__dict__.get(_CACHED)
    if cached is not None and cached[0] is changed:
        return cached[1]
    chosen: BackendSource | None = app.conf.get(SETTING)
    if chosen is not None:
        require_backend_source(f"app.conf.{SETTING}", chosen)
        backend = _resolved(chosen)
        app.__dict__[_CACHED] = (changed, backend)
        return backend
    if _DJANGO in sys.modules:
        return _django_backend("default")
    raise invalid_argument(_NO_BACKEND)


def _resolved(source: BackendSource) -> LockBackend:
    if is_backend(source):
        return source
    with _backends_guard:
        if source not in _backends:
            _backends[source] = _make(source)
        return _backends[source]


def _make(source: str | Callable[[], LockBackend]) -> LockBackend:
    if callable(source):
        made = source()
        require_backend("the return value of the backend callable", made)
        return made
    return backends.from_url(source)


def _django_backend(alias: str) -> LockBackend:
    return cast("LockBackend", importlib.import_module(_DJANGO).locks[alias])
