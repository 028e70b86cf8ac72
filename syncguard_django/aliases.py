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
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from syncguard import LockBackend, LockError, aio, with_telemetry
from syncguard.aio import AsyncLockBackend
from syncguard_django.configuration import SETTING, AliasSettings, configuration, forget
from syncguard_django.holder_label import label_of_caller
from syncguard_django.signals import async_sender_of_events, sender_of_events

if TYPE_CHECKING:
    from syncguard.redis import RedisBackend

_PATIENCE_S: Final = 2.0
"""How long a page or a command waits for Redis."""


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
        self._inspectors: dict[str, RedisBackend] = {}
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

    def inspector(self, alias: str) -> RedisBackend:
        """A backend for pages and commands that people wait for: one short try, no signals."""
        with self._guard:
            if alias not in self._inspectors:
                self._inspectors[alias] = _inspector(configuration().of(alias))
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
        self._homes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Home] = WeakKeyDictionary()
        self._guard = threading.Lock()

    def __getitem__(self, alias: str) -> AsyncLockBackend:
        settings = configuration().of(alias)
        loop = asyncio.get_running_loop()
        with self._guard:
            home = self._homes.get(loop)
            if home is None:
                self._leave_closed_loops()
                home = self._homes[loop] = _Home(lambda: self._homes.pop(loop, None))
        return home.backend(settings)

    def __iter__(self) -> Iterator[str]:
        return iter(configuration().names)

    def _leave_closed_loops(self) -> None:
        # Loops that ended without shutting down their generators, which would keep them alive.
        for loop in [loop for loop in self._homes if loop.is_closed()]:
            del self._homes[loop]


class _Home:
    """The backends of one event loop. Touched by that loop only."""

    def __init__(self, move_out: Callable[[], object]) -> None:
        self._move_out = move_out
        self._kept: dict[str, _Kept] = {}
        self._retired: list[_Kept] = []
        # asyncio.run() and every other orderly end of a loop closes the asynchronous generators
        # that were started in it: the one hook that a loop offers for saying goodbye.
        self._farewell = self._until_the_loop_ends()
        with contextlib.suppress(StopIteration):
            self._farewell.__anext__().send(None)

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
            self._move_out()
            for kept in (*self._kept.values(), *self._retired):
                await kept.bare.aclose()


def make_backend(settings: AliasSettings) -> Any:
    """A blocking backend, without connecting. Raises ImproperlyConfigured."""
    return _made(settings, _class(settings, settings.backend))


def make_async_backend(settings: AliasSettings) -> Any:
    """Its asyncio twin: the class beside it whose name begins with ``Async``."""
    module, _, name = settings.backend.rpartition(".")
    return _made(settings, _class(settings, f"{module}.Async{name}"))


def _inspector(settings: AliasSettings) -> RedisBackend:
    # Not at the top: that Redis's package is missing is for a check to say, not for an import.
    from syncguard.redis import RedisBackend, impatient_options

    cls = _class(settings, settings.backend)
    if not issubclass(cls, RedisBackend):
        raise ImproperlyConfigured(
            f"{_where(settings)} is no RedisBackend: its locks cannot be listed"
        )
    chosen = settings.options.get("socket_timeout")
    patience = min(chosen, _PATIENCE_S) if isinstance(chosen, int | float) else _PATIENCE_S
    backend: RedisBackend = _made(settings, cls, **impatient_options(patience))
    return backend


def _made(settings: AliasSettings, cls: Any, **more: object) -> Any:
    options = {**settings.options, **more}
    try:
        return cls.from_url(
            settings.address.without(options).url,  # redis-py lets the query win
            key_prefix=settings.key_prefix,
            hash_secret=settings.hash_secret,
            fence_floor=settings.fence_floor,
            default_holder=label_of_caller,
            **options,
        )
    except LockError as error:
        raise ImproperlyConfigured(f'{SETTING}["{settings.alias}"]: {error}') from None


def _class(settings: AliasSettings, path: str) -> Any:
    try:
        return import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(
            f"{_where(settings)}: {path} cannot be imported; is its package installed?"
        ) from error


def _where(settings: AliasSettings) -> str:
    return f'{SETTING}["{settings.alias}"]["BACKEND"]'


locks: Final = Locks()
alocks: Final = AsyncLocks()
