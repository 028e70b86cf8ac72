"""What a successful acquire returns: the lock's data, and methods to extend and release it.

Leaving ``with`` releases and never raises. In a forked child it does nothing: the parent holds the
lock.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeGuard

from syncguard._lock.release_after_block import Disposal
from syncguard.errors import invalid_argument
from syncguard.types import (
    Contended,
    ExtendResult,
    Fence,
    ReleaseErrorContext,
    ReleaseResult,
    Signal,
)


class Releaser(Protocol):
    """The part of a blocking backend that a handle needs."""

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult: ...

    def extend(
        self, lock_id: str, ttl_ms: int, *, signal: Signal | None = None
    ) -> ExtendResult: ...


class AsyncReleaser(Protocol):
    """The part of an asyncio backend that a handle needs."""

    def release(
        self, lock_id: str, *, signal: Signal | None = None
    ) -> Awaitable[ReleaseResult]: ...

    def extend(
        self, lock_id: str, ttl_ms: int, *, signal: Signal | None = None
    ) -> Awaitable[ExtendResult]: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock that was granted: the data of both kinds of handle."""

    lock_id: str = field(repr=False)
    fence: Fence
    expires_at_ms: int
    key: str = field(repr=False)
    ttl_ms: int = field(repr=False)
    sent_at_ms: float = field(repr=False)
    """Send time of the request, on the holder's clock. The lock lasts at least until this + TTL."""
    disposal: Disposal = field(repr=False, compare=False)
    ok: ClassVar[Literal[True]] = True
    pid: int = field(default_factory=os.getpid, init=False, repr=False, compare=False)

    def __bool__(self) -> Literal[True]:
        return True

    def context(self) -> ReleaseErrorContext:
        return ReleaseErrorContext(key=self.key, lock_id=self.lock_id, source="handle")


@dataclass(frozen=True, slots=True)
class Acquired(Grant):
    """The lock is acquired. Use it in ``with``, or call ``release()`` yourself."""

    backend: Releaser = field(repr=False, compare=False)

    def release(self, *, signal: Signal | None = None) -> ReleaseResult:
        return self.backend.release(self.lock_id, signal=signal)

    def extend(self, ttl_ms: int, *, signal: Signal | None = None) -> ExtendResult:
        return self.backend.extend(self.lock_id, ttl_ms, signal=signal)

    def __enter__(self) -> Acquired:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.pid == os.getpid():
            self.disposal.release(self.release, self.context)


@dataclass(frozen=True, slots=True)
class AsyncAcquired(Grant):
    """The lock is acquired. Use it in ``async with``, or await ``release()`` yourself."""

    backend: AsyncReleaser = field(repr=False, compare=False)

    async def release(self, *, signal: Signal | None = None) -> ReleaseResult:
        return await self.backend.release(self.lock_id, signal=signal)

    async def extend(self, ttl_ms: int, *, signal: Signal | None = None) -> ExtendResult:
        return await self.backend.extend(self.lock_id, ttl_ms, signal=signal)

    async def __aenter__(self) -> AsyncAcquired:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self.pid == os.getpid():
            release: Callable[[], Awaitable[ReleaseResult]] = self.release
            await self.disposal.release_async(release, self.context)


def has_fence(result: Acquired | AsyncAcquired | Contended) -> TypeGuard[Acquired | AsyncAcquired]:
    """Whether a result has a fence: for code that works with any backend."""
    if not isinstance(getattr(result, "ok", None), bool):
        raise invalid_argument("has_fence takes the result of acquire")
    return result.ok and bool(result.fence)
