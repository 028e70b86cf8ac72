"""The backend of each alias: created on first use, cached, and closed at the end.

The whole process shares one blocking backend. An asyncio client belongs to one event loop, so each
running loop has its own, which is closed when the loop ends. Creating a backend opens no
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured

from syncguard import LockBackend, LockError, aio, backends, with_telemetry
from syncguard.aio import AsyncLockBackend
from syncguard.backend import BackendClass, Location
from syncguard_django.holder_label import label_of_caller
from syncguard_django.settings import SETTING, AliasSettings, configuration, forget
from syncguard_django.signals import async_sender_of_events, sender_of_events


@dataclass(frozen=True, slots=True)
class _CachedBackend:
    settings: AliasSettings
    bare: Any
    public: Any
    """What users get: the bare backend, or a wrapper around it that sends signals."""


class Locks:
    """``locks["alias"]``: the blocking backend of an alias."""

    def __init__(self) -> None:
        self._cached: dict[str, _CachedBackend] = {}
        self._inspectors: dict[str, LockBackend] = {}
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> LockBackend:
        cached = self._cached.get(alias)
        if cached is not None and cached.settings.is_outdated:
            self.reset()
            cached = None
        if cached is None:
            with self._guard:
                cached = self._cached.get(alias) or self._make(_settings_of(alias))
        backend: LockBackend = cached.public
        return backend

    def __iter__(self) -> Iterator[str]:
        return iter(configuration().names)

    def inspector(self, alias: str) -> LockBackend:
        """A backend for the admin page and commands: one short attempt, no signals."""
        if configuration().of(alias).is_outdated:
            self.reset()
        with self._guard:
            if alias not in self._inspectors:
                settings = configuration().of(alias)
                location = settings.location.quick or settings.location
                backend = _create(settings, settings.backend_class, location)
                self._inspectors[alias] = cast("LockBackend", backend)
            return self._inspectors[alias]

    def reset(self) -> None:
        """Close every backend. The next use reads the setting again."""
        with self._guard:
            forget()
            backends = [
                *(cached.bare for cached in self._cached.values()),
                *self._inspectors.values(),
            ]
            self._cached.clear()
            self._inspectors.clear()
        for backend in backends:
            backend.close()

    def _make(self, settings: AliasSettings) -> _CachedBackend:
        bare = make_backend(settings)
        public = bare
        if settings.telemetry:
            public = with_telemetry(bare, sender_of_events(settings.alias))
        cached = self._cached[settings.alias] = _CachedBackend(settings, bare, public)
        return cached


class AsyncLocks:
    """``alocks["alias"]``: the asyncio backend of an alias, for the running event loop."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopBackends] = (
            WeakKeyDictionary()
        )
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> AsyncLockBackend:
        settings = _settings_of(alias)
        loop = asyncio.get_running_loop()
        with self._guard:
            of_loop = self._by_loop.get(loop)
            if of_loop is None:
                self._forget_closed_loops()
                of_loop = self._by_loop[loop] = _LoopBackends(lambda: self._by_loop.pop(loop, None))
        return of_loop.backend(settings)

    def __iter__(self) -> Iterator[str]:
        return iter(configuration().names)

    def _forget_closed_loops(self) -> None:
        # These loops ended without closing their asynchronous generators. Each entry references its
        # loop, so the weak dictionary would never remove it.
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


class _LoopBackends:
    """The backends of one event loop. Only code of that loop uses them."""

    def __init__(self, forget_loop: Callable[[], object]) -> None:
        self._forget_loop = forget_loop
        self._cached: dict[str, _CachedBackend] = {}
        self._retired: list[_CachedBackend] = []
        # asyncio.run(), and any other code that shuts a loop down properly, closes the asynchronous
        # generators that were started in the loop. A loop has no other hook for its end.
        self._closer = self._close_when_the_loop_ends()
        with contextlib.suppress(StopIteration):
            self._closer.__anext__().send(None)

    def backend(self, settings: AliasSettings) -> AsyncLockBackend:
        cached = self._cached.get(settings.alias)
        if cached is None or cached.settings is not settings:
            if cached is not None:
                self._retired.append(cached)
            cached = self._cached[settings.alias] = self._make(settings)
        backend: AsyncLockBackend = cached.public
        return backend

    def _make(self, settings: AliasSettings) -> _CachedBackend:
        bare = make_async_backend(settings)
        public = bare
        if settings.telemetry:
            public = aio.with_telemetry(bare, async_sender_of_events(settings.alias))
        return _CachedBackend(settings, bare, public)

    async def _close_when_the_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._forget_loop()
            for cached in (*self._cached.values(), *self._retired):
                await cached.bare.aclose()


def _settings_of(alias: str) -> AliasSettings:
    """The settings of an alias, read again if Django has changed the name of its database."""
    settings = configuration().of(alias)
    if settings.is_outdated:
        forget()
        settings = configuration().of(alias)
    return settings


def make_backend(settings: AliasSettings) -> LockBackend:
    """Create a blocking backend, without connecting. Raises ImproperlyConfigured."""
    return cast("LockBackend", _create(settings, settings.backend_class, settings.location))


def make_async_backend(settings: AliasSettings) -> AsyncLockBackend:
    """Create an asyncio backend, without connecting. Raises ImproperlyConfigured."""
    try:
        cls = backends.async_backend_class(settings.backend)
    except LockError as error:
        raise _configuration_error(settings, error) from None
    return cast("AsyncLockBackend", _create(settings, cls, settings.location))


def _create(settings: AliasSettings, cls: type[BackendClass], location: Location) -> object:
    options: dict[str, object] = {
        "hash_secret": settings.hash_secret,
        "default_holder": label_of_caller,
    }
    if settings.fence_floor is not None:
        options["fence_floor"] = settings.fence_floor
    try:
        return backends.make_backend(cls, location, key_prefix=settings.key_prefix, **options)
    except LockError as error:
        raise _configuration_error(settings, error) from None


def _configuration_error(settings: AliasSettings, error: LockError) -> ImproperlyConfigured:
    return ImproperlyConfigured(f'{SETTING}["{settings.alias}"]: {error}')


locks: Final = Locks()
alocks: Final = AsyncLocks()
