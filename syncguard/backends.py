"""From a URL or a dotted path to a backend: the registry.

The schemes of SyncGuard's own backends are built in and cannot be replaced. Any other scheme is
looked up among the entry points of the group ``syncguard.backends``: on first use, never at import,
because the first lookup takes up to 140 ms. Nothing here connects to a server, and no error quotes
a URL or an option's value.
"""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Final, cast

from syncguard._backend.required import AsyncLockBackend, BackendClass, LockBackend
from syncguard._backend.settings import (
    GivenLocation,
    Location,
    ReadsLocation,
    SettingProblem,
    plain_location,
)
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.dotted_path import import_dotted
from syncguard.errors import invalid_argument

__all__ = [
    "DEFAULT_BACKEND",
    "GROUP",
    "async_backend_class",
    "async_from_url",
    "backend_class",
    "from_url",
    "make_backend",
    "read_location",
    "scheme_of",
]

GROUP: Final = "syncguard.backends"
"""The group of the entry points: the name is the URL's scheme, the value is the blocking class."""

DEFAULT_BACKEND: Final = "syncguard.redis.RedisBackend"
"""Used if the settings contain neither a class nor a URL."""

_REDIS: Final = (DEFAULT_BACKEND, "needs the package redis: pip install redis")
_POSTGRES: Final = (
    "syncguard.postgres.PostgresBackend",
    'needs the package psycopg: pip install "syncguard[postgres]"',
)
BUILT_IN: Final = {
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "sqlite": (
        "syncguard.sqlite.SQLiteBackend",
        "needs the module sqlite3 of the standard library, and this Python was built without it",
    ),
    "memory": ("syncguard.memory.MemoryBackend", "cannot be imported"),
}
"""For each scheme: the class, and the end of the sentence if it cannot be imported."""

_MISSING_DRIVERS: Final = dict(BUILT_IN.values())


def from_url(url: str, *, key_prefix: str = DEFAULT_KEY_PREFIX, **options: object) -> LockBackend:
    """The blocking backend of a URL, chosen by the URL's scheme. Connects to nothing."""
    cls = backend_class(scheme_of(url))
    return cast("LockBackend", make_backend(cls, Location(url, options), key_prefix=key_prefix))


def async_from_url(
    url: str, *, key_prefix: str = DEFAULT_KEY_PREFIX, **options: object
) -> AsyncLockBackend:
    """The asyncio backend of a URL, chosen by the URL's scheme. Connects to nothing."""
    cls = async_backend_class(scheme_of(url))
    made = make_backend(cls, Location(url, options), key_prefix=key_prefix)
    return cast("AsyncLockBackend", made)


def backend_class(name: str) -> type[BackendClass]:
    """The blocking class of a scheme or a dotted path. Raises InvalidArgument.

    A class that cannot be imported is an InvalidArgument with the ImportError as its cause.
    """
    return _of_kind(_class_of(name), wants_async=False)


def async_backend_class(name: str) -> type[BackendClass]:
    """The asyncio class of a scheme or a dotted path: the class itself, or its ``twin``."""
    return _of_kind(_class_of(name), wants_async=True)


def read_location(cls: type[BackendClass], given: GivenLocation) -> Location | SettingProblem:
    """Where the locks are. Read from settings by the class, or else by ``plain_location``."""
    return cls.read_location(given) if isinstance(cls, ReadsLocation) else plain_location(given)


def make_backend(
    cls: type[BackendClass], location: Location, *, key_prefix: str, **options: object
) -> LockBackend | AsyncLockBackend:
    """A backend at a location. Options of the call override those of the location."""
    given: dict[str, object] = {**location.options, **options, "key_prefix": key_prefix}
    signature = inspect.signature(cls.from_url)
    try:
        signature.bind(location.url, **given)
    except TypeError:
        unknown = ", ".join(sorted(given.keys() - signature.parameters.keys()))
        raise invalid_argument(f"{cls.__name__}.from_url does not take {unknown}") from None
    backend = cls.from_url(location.url, **given)  # type: ignore[arg-type]
    return cast("LockBackend | AsyncLockBackend", backend)


def scheme_of(url: object) -> str:
    """The scheme of a URL. Raises InvalidArgument."""
    scheme, separator, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or not scheme.replace("+", "").replace("-", "").isalnum():
        raise invalid_argument("a backend's URL looks like redis://127.0.0.1:6379/0")
    return scheme.lower()


def _class_of(name: str) -> type[BackendClass]:
    if not isinstance(name, str) or not name:
        raise invalid_argument("a backend's name is the scheme of a URL or a dotted path")
    if "." in name:
        missing = _missing_driver(name) or "cannot be imported; is its package installed?"
        return _checked(_imported(name, f"{name} {missing}"))
    if name in BUILT_IN:
        path, missing = BUILT_IN[name]
        return _checked(_imported(path, f"{name}:// {missing}"))
    return _checked(_from_entry_point(name))


def _missing_driver(path: str) -> str | None:
    """What a class of SyncGuard's own needs, by its dotted path or that of its twin."""
    module, _, name = path.rpartition(".")
    return _MISSING_DRIVERS.get(f"{module}.{name.removeprefix('Async')}")


def _imported(path: str, missing: str) -> object:
    try:
        return import_dotted(path)
    except ImportError as error:
        raise invalid_argument(missing) from error


def _from_entry_point(scheme: str) -> object:
    found = {entry.value: entry for entry in metadata.entry_points(group=GROUP, name=scheme)}
    if not found:
        # The scheme is not quoted: in a malformed URL it may be a part of a password.
        raise invalid_argument(
            "no installed package has a backend for this URL's scheme; the built-in schemes are"
            f" {', '.join(BUILT_IN)}"
        )
    if len(found) > 1:
        raise invalid_argument(
            f"several installed packages have a backend for {scheme}://:"
            f" {', '.join(sorted(found))}. Use the dotted path of one, or uninstall the others"
        )
    (entry,) = found.values()
    try:
        return cast("object", entry.load())
    except (ImportError, AttributeError) as error:
        raise invalid_argument(f"{entry.value} cannot be imported; is it installed?") from error


def _checked(found: object) -> type[BackendClass]:
    wanted = ("from_url", "acquire", "is_async")
    if isinstance(found, type) and all(hasattr(found, name) for name in wanted):
        return cast("type[BackendClass]", found)
    raise invalid_argument(
        f"{_name_of(found)} is not the class of a backend: see syncguard.backend.BackendClass"
    )


def _of_kind(cls: type[BackendClass], *, wants_async: bool) -> type[BackendClass]:
    if cls.is_async is wants_async:
        return cls
    kind = "asyncio" if wants_async else "blocking"
    # From the class itself: the twin of a base class is another backend.
    path: str | None = vars(cls).get("twin")
    if path is None:
        raise invalid_argument(
            f"{cls.__name__} names no {kind} twin: set the class attribute twin to the dotted path"
            f" of the {kind} class"
        )
    twin = _checked(_imported(path, f"{path}, the {kind} twin, cannot be imported"))
    if twin.is_async is not wants_async:
        raise invalid_argument(
            f"{path} is named as the {kind} twin, but is not a class for {kind} code"
        )
    return twin


def _name_of(found: object) -> str:
    return found.__name__ if isinstance(found, type) else type(found).__name__
