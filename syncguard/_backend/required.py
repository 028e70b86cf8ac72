"""The required parts of a backend: the protocols that ``lock()``, telemetry and adapters use.

``syncguard.testing`` has the test suite for them. An operation is a single attempt: only ``lock()``
retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from syncguard._lock.handles import Acquired, AsyncAcquired
from syncguard._lock.release_after_block import Disposal
from syncguard.errors import LockError, invalid_argument
from syncguard.types import (
    BackendCapabilities,
    Contended,
    ExtendResult,
    LockInfo,
    LockInfoDebug,
    NotAdopted,
    ReleaseResult,
    Signal,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class LockBackend(Protocol):
    """A store of locks, blocking."""

    is_async: ClassVar[bool]
    """False."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    @property
    def disposal(self) -> Disposal: ...

    def acquire(
        self,
        key: str,
        ttl_ms: int = ...,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended: ...

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult: ...

    def extend(
        self, lock_id: str, ttl_ms: int = ..., *, signal: Signal | None = None
    ) -> ExtendResult: ...

    def adopt(
        self,
        lock_id: str,
        ttl_ms: int = ...,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | NotAdopted: ...

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool: ...

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None: ...

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """The same with the raw key and lock id. SENSITIVE."""
        ...

    def hash(self, value: str) -> str:
        """The display hash of a key or a lock id: what pages and logs show instead of it."""
        ...

    def close(self) -> None:
        """Close the connections that the backend opened. Held locks stay held."""
        ...


class AsyncLockBackend(Protocol):
    """A store of locks, for asyncio."""

    is_async: ClassVar[bool]
    """True."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    @property
    def disposal(self) -> Disposal: ...

    async def acquire(
        self,
        key: str,
        ttl_ms: int = ...,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | Contended: ...

    async def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult: ...

    async def extend(
        self, lock_id: str, ttl_ms: int = ..., *, signal: Signal | None = None
    ) -> ExtendResult: ...

    async def adopt(
        self,
        lock_id: str,
        ttl_ms: int = ...,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | NotAdopted: ...

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool: ...

    async def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None: ...

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        """The same with the raw key and lock id. SENSITIVE."""
        ...

    def hash(self, value: str) -> str:
        """The display hash of a key or a lock id: what pages and logs show instead of it."""
        ...

    async def aclose(self) -> None:
        """Close the connections that the backend opened. Held locks stay held."""
        ...


class BackendClass(Protocol):
    """The class of a backend, for ``syncguard.backends`` and the settings of a project."""

    is_async: ClassVar[bool]
    twin: ClassVar[str | None]
    """On a blocking class, the dotted path of its asyncio version, and the other way round.

    Each class declares its own: it is not inherited.
    """

    @classmethod
    def from_url(cls, url: str, *, key_prefix: str = ..., **options: object) -> Self:
        """A backend from a URL, without any I/O. Raises InvalidArgument, and quotes no value.

        The adapter for Django also passes ``hash_secret`` and ``default_holder``, and passes
        ``fence_floor`` where a project sets it; all other options are those of the settings.
        """
        ...


def check_signal(signal: Signal | None) -> None:
    """Raise ``Aborted`` if the signal is set. Every operation calls this before any I/O."""
    if signal is None:
        return
    is_set = getattr(signal, "is_set", None)
    if not callable(is_set):
        raise invalid_argument("signal must have a method is_set(), like threading.Event")
    if is_set():
        raise LockError("Aborted")
