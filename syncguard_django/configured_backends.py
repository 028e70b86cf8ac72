"""From an alias to a backend: made on first use, kept, and closed when it has served.

A blocking backend serves the whole process. An asyncio client belongs to one event loop, so each
running loop has its own, and closes it as it ends. Making a backend opens no connection.
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
class _Kept:
    settings: AliasSettings
    bare: Any
    reporting: Any
    """What users get: the bare backend, or one that sends signals."""


class Locks:
    """``locks["alias"]``: the blocking backend of an alias."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._inspectors: dict[str, LockBackend] = {}
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> LockBackend:
        kept = self._kept.get(alias)
        if kept is None:
            with self._guard:
                kept = self._kept.get(alias) or self._make(configuration().of(alias))
        backend: LockBackend = kept.reporting
        return backend

    def __iter__(self) -> Iterator[str]:
        return iter(configuration().names)

    def inspector(self, alias: str) -> LockBackend:
        """A backend for pages and commands that people wait for: one short try, no signals."""
        with self._guard:
            if alias not in self._inspectors:
                settings = configuration().of(alias)
                location = settings.location.quick or settings.location
                made = _made(settings, settings.backend_class, location)
                self._inspectors[alias] = cast("LockBackend", made)
            return self._inspectors[alias]

    def reset(self) -> None:
        """Close everything; the next use reads the setting again."""
        with self._guard:
            forget()
            backends = [*(kept.bare for kept in self._kept.values()), *self._inspectors.values()]
            self._kept.clear()
            self._inspectors.clear()
        for backend in backends:
            backend.close()

    def _make(self, settings: AliasSettings) -> _Kept:
        bare = make_backend(settings)
        reporting = bare
        if settings.telemetry:
            reporting = with_telemetry(bare, sender_of_events(settings.alias))
        kept = self._kept[settings.alias] = _Kept(settings, bare, reporting)
        return kept


class AsyncLocks:
    """``alocks["alias"]``: the asyncio backend of an alias, for the running event loop."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopBackends] = (
            WeakKeyDictionary()
        )
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> AsyncLockBackend:
        settings = configuration().of(alias)
        loop = asyncio.get_running_loop()
        with self._guard:
            of_loop = self._by_loop.get(loop)
            if of_loop is None:
                self._leave_closed_loops()
                of_loop = self._by_loop[loop] = _LoopBackends(lambda: self._by_loop.pop(loop, None))
        return of_loop.backend(settings)

    def __iter__(self) -> Iterator[str]:
        return iter(configuration().names)

    def _leave_closed_loops(self) -> None:
        # Loops that ended without shutting down their generators, which would keep them alive.
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


class _LoopBackends:
    """The backends of one event loop. Touched by that loop only."""

    def __init__(self, forget_loop: Callable[[], object]) -> None:
        self._forget_loop = forget_loop
        self._kept: dict[str, _Kept] = {}
        self._retired: list[_Kept] = []
        # asyncio.run() and every other orderly end of a loop closes the asynchronous generators
        # that were started in it: the one hook that a loop offers for saying goodbye.
        self._closer = self._until_the_loop_ends()
        with contextlib.suppress(StopIteration):
            self._closer.__anext__().send(None)

    def backend(self, settings: AliasSettings) -> AsyncLockBackend:
        kept = self._kept.get(settings.alias)
        if kept is None or kept.settings is not settings:
            if kept is not None:
                self._retired.append(kept)
            kept = self._kept[settings.alias] = self._make(settings)
        backend: AsyncLockBackend = kept.reporting
        return backend

    def _make(self, settings: AliasSettings) -> _Kept:
        bare = make_async_backend(settings)
        reporting = bare
        if settings.telemetry:
            reporting = aio.with_telemetry(bare, async_sender_of_events(settings.alias))
        return _Kept(settings, bare, reporting)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._forget_loop()
            for kept in (*self._kept.values(), *self._retired):
                await kept.bare.aclose()


def make_backend(settings: AliasSettings) -> LockBackend:
    """A blocking backend, without connecting. Raises ImproperlyConfigured."""
    return cast("LockBackend", _made(settings, settings.backend_class, settings.location))


def make_async_backend(settings: AliasSettings) -> AsyncLockBackend:
    """Its asyncio twin."""
    try:
        cls = backends.async_backend_class(settings.backend)
    except LockError as error:
        raise _refused(settings, error) from None
    return cast("AsyncLockBackend", _made(settings, cls, settings.location))


def _made(settings: AliasSettings, cls: type[BackendClass], location: Location) -> object:
    options: dict[str, object] = {
        "hash_secret": settings.hash_secret,
        "default_holder": label_of_caller,
    }
    if settings.fence_floor is not None:
        options["fence_floor"] = settings.fence_floor
    try:
        return backends.make_backend(cls, location, key_prefix=settings.key_prefix, **options)
    except LockError as error:
        raise _refused(settings, error) from None


def _refused(settings: AliasSettings, error: LockError) -> ImproperlyConfigured:
    return ImproperlyConfigured(f'{SETTING}["{settings.alias}"]: {error}')


locks: Final = Locks()
alocks: Final = AsyncLocks()
