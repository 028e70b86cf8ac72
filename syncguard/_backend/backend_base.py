"""What the backends of SyncGuard share, whatever their store: settings and derived methods. No I/O.

``syncguard.backend`` is the interface. A backend of another author needs nothing of this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from syncguard._backend.listing_and_health import LockPage, sanitized
from syncguard._lock.release_after_block import Disposal, check_callback
from syncguard.lock import Lockable
from syncguard.lock_async import AsyncLockable
from syncguard.traceback_locals import hides_arguments_of_methods
from syncguard.types import LockInfo, LockInfoDebug, OnReleaseError, Signal

if TYPE_CHECKING:
    from typing_extensions import Self


class BackendConfig:
    """The settings of any backend, checked."""

    is_async: ClassVar[bool]
    twin: ClassVar[str | None]
    begins_at_once: ClassVar[bool] = False
    """In asyncio, releasing uses neither ``asyncio.timeout`` nor ``wait_for``; see ``settle``."""

    def __init__(
        self,
        key_prefix: str,
        display_hash: Callable[[str], str],
        on_release_error: OnReleaseError | None,
        dispose_timeout_ms: int | None,
    ) -> None:
        check_callback("on_release_error", on_release_error, may_be_async=self.is_async)
        self._disposal = Disposal.of(
            on_release_error, dispose_timeout_ms, begins_at_once=self.begins_at_once
        )
        self._display_hash = display_hash
        self._key_prefix = key_prefix

    @property
    def disposal(self) -> Disposal:
        return self._disposal

    @property
    def key_prefix(self) -> str:
        return self._key_prefix

    def hash(self, value: str) -> str:
        """Return the hash of a key or a lock id that this backend shows in pages and logs."""
        return self._display_hash(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key_prefix={self.key_prefix!r})"


@hides_arguments_of_methods()
class BlockingBackend(Lockable, ABC):
    """The methods of a blocking backend that follow from others."""

    @abstractmethod
    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""

    @abstractmethod
    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the time. SENSITIVE."""

    @abstractmethod
    def close(self) -> None: ...

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        """Read a live lock, sanitized. Only for diagnostics: do not decide about writes with it."""
        info = self.lookup_raw(key=key, lock_id=lock_id, signal=signal)
        return None if info is None else sanitized(info)

    def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        """The live locks, soonest to expire first. Reads only the returned locks."""
        return list(map(sanitized, self.live_locks_raw(limit, offset)))

    def live_locks_raw(self, limit: int = 100, offset: int = 0) -> list[LockInfoDebug]:
        """The same with raw keys and lock ids. SENSITIVE: for administrators' tools."""
        return self.page_raw(limit, offset).locks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@hides_arguments_of_methods()
class AsyncBackend(AsyncLockable, ABC):
    """The methods of an asyncio backend that follow from others."""

    @abstractmethod
    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """``lookup`` with the raw key and lock id. SENSITIVE: the lock id can release the lock."""

    @abstractmethod
    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        """``live_locks_raw``, with the total number of live locks and the time. SENSITIVE."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        """Read a live lock, sanitized. Only for diagnostics: do not decide about writes with it."""
        info = await self.lookup_raw(key=key, lock_id=lock_id, signal=signal)
        return None if info is None else sanitized(info)

    async def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        """The live locks, soonest to expire first. Reads only the returned locks."""
        return list(map(sanitized, await self.live_locks_raw(limit, offset)))

    async def live_locks_raw(self, limit: int = 100, offset: int = 0) -> list[LockInfoDebug]:
        """The same with raw keys and lock ids. SENSITIVE: for administrators' tools."""
        return (await self.page_raw(limit, offset)).locks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
