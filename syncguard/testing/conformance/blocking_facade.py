"""Gives an asyncio backend the blocking interface, so that one suite tests both kinds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from syncguard._backend.listing_and_health import Health, async_health_of, async_listing_of
from syncguard._lock.sleeping_waiter import attempt_async
from syncguard.backend import (
    DEFAULT_TTL_MS,
    Acquired,
    AsyncAcquired,
    AsyncAcquiresUntil,
    AsyncExtendChannel,
    AsyncListsLocks,
    AsyncLockBackend,
    AsyncOpensExtendChannel,
    AsyncSpreadsLocks,
    AsyncWaiter,
    AsyncWakeable,
    BackendCapabilities,
    Contended,
    Deadline,
    Disposal,
    ExtendChannel,
    ExtendResult,
    Extension,
    LockError,
    LockInfo,
    LockInfoDebug,
    LockPage,
    NotAdopted,
    Refusal,
    ReleaseResult,
    Signal,
    Waiter,
    Wanted,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class LoopThread:
    """Runs an event loop on a separate thread during a ``with`` block."""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run_until_exit()), name="syncguard-loop", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop, and block until it ends. Can be called in any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _run_until_exit(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()


@dataclass(frozen=True, slots=True)
class _Acquired(Acquired):
    """Enters and exits the asyncio handle, which is under test."""

    inner: AsyncAcquired = field(repr=False, compare=False)
    loop: LoopThread = field(repr=False, compare=False)

    def release(self, *, signal: Signal | None = None) -> ReleaseResult:
        return self.loop.run(self.inner.release(signal=signal))

    def extend(self, ttl_ms: int, *, signal: Signal | None = None) -> ExtendResult:
        return self.loop.run(self.inner.extend(ttl_ms, signal=signal))

    def __enter__(self) -> _Acquired:
        self.loop.run(self.inner.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self.loop.run(self.inner.__aexit__(*exc))


class BlockingFacade:
    """A blocking interface to an asyncio backend. Only for tests: every call uses two threads."""

    is_async: ClassVar = False

    def __init__(self, backend: AsyncLockBackend, loop: LoopThread) -> None:
        self._backend = self.__wrapped__ = backend
        self._loop = loop

    def __repr__(self) -> str:
        return f"BlockingFacade({self._backend!r})"

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._backend.capabilities

    @property
    def disposal(self) -> Disposal:
        return self._backend.disposal

    def hash(self, value: str) -> str:
        return self._backend.hash(value)

    def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended:
        result = self._loop.run(self._backend.acquire(key, ttl_ms, holder=holder, signal=signal))
        return self._handle(result) if isinstance(result, AsyncAcquired) else result

    def acquire_until(
        self, key: str, ttl_ms: int, deadline: Deadline, /, *, holder: str | None = None
    ) -> Acquired | Contended:
        backend = self._backend
        assert isinstance(backend, AsyncAcquiresUntil)
        result = self._loop.run(backend.acquire_until(key, ttl_ms, deadline, holder=holder))
        return self._handle(result) if isinstance(result, AsyncAcquired) else result

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        return self._loop.run(self._backend.release(lock_id, signal=signal))

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        return self._loop.run(self._backend.extend(lock_id, ttl_ms, signal=signal))

    def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | NotAdopted:
        result = self._loop.run(self._backend.adopt(lock_id, ttl_ms, holder=holder, signal=signal))
        return self._handle(result) if isinstance(result, AsyncAcquired) else result

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        return self._loop.run(self._backend.is_locked(key, signal=signal))

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        return self._loop.run(self._backend.lookup(key=key, lock_id=lock_id, signal=signal))

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        return self._loop.run(self._backend.lookup_raw(key=key, lock_id=lock_id, signal=signal))

    def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        return self._loop.run(self._listing.live_locks(limit, offset))

    def count_live_locks(self) -> int:
        return self._loop.run(self._listing.count_live_locks())

    def health(self) -> Health:
        return self._loop.run(async_health_of(self._backend).health())

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        return self._loop.run(self._listing.page_raw(limit, offset))

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        return self._loop.run(
            self._listing.find_raw(is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms)
        )

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        return self._loop.run(
            self._listing.force_release(key_hash, fence=fence, lock_id_hash=lock_id_hash)
        )

    def open_waiter(self, key: str) -> Waiter:
        backend = self._backend
        assert isinstance(backend, AsyncWakeable)
        return _BlockingWaiter(self, backend.open_waiter(key))

    def open_extend_channel(self, timeout_ms: float) -> ExtendChannel | None:
        backend = self._backend
        assert isinstance(backend, AsyncOpensExtendChannel)
        channel = self._loop.run(backend.open_extend_channel(timeout_ms))
        return None if channel is None else _BlockingChannel(self._loop, channel)

    def server_of(self, lock_id: str) -> Hashable | None:
        backend = self._backend
        return backend.server_of(lock_id) if isinstance(backend, AsyncSpreadsLocks) else None

    def open_server_channel(self, server: Hashable, timeout_ms: float) -> ExtendChannel:
        backend = self._backend
        assert isinstance(backend, AsyncSpreadsLocks)
        channel = self._loop.run(backend.open_server_channel(server, timeout_ms))
        return _BlockingChannel(self._loop, channel)

    def close(self) -> None:
        self._loop.run(self._backend.aclose())

    @property
    def _listing(self) -> AsyncListsLocks:
        return async_listing_of(self._backend)

    def _handle(self, inner: AsyncAcquired) -> _Acquired:
        return _Acquired(
            inner.lock_id,
            inner.fence,
            inner.expires_at_ms,
            inner.key,
            inner.ttl_ms,
            inner.sent_at_ms,
            inner.disposal,
            self,
            inner,
            self._loop,
        )


class _BlockingWaiter:
    """A blocking interface to a waiter of an asyncio backend."""

    def __init__(self, facade: BlockingFacade, inner: AsyncWaiter) -> None:
        self._facade = facade
        self._inner = self.__wrapped__ = inner
        self._acquired_id: str | None = None

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        return self._answer(self._inner.attempt(ttl_ms, holder, wait_ms))

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> Acquired | Refusal:
        async def attempt() -> AsyncAcquired | Refusal:
            return await attempt_async(self._inner, ttl_ms, holder, wait_ms, deadline)

        return self._answer(attempt())

    def _answer(self, attempt: Coroutine[Any, Any, AsyncAcquired | Refusal]) -> Acquired | Refusal:
        answer = self._facade._loop.run(attempt)
        if isinstance(answer, Refusal):
            return answer
        self._acquired_id = answer.lock_id
        return self._facade._handle(answer)

    def wait(self, ms: float, signal: Signal | None) -> bool:
        return self._facade._loop.run(self._inner.wait(ms, signal))

    def close(self) -> None:
        self._facade._loop.run(self._inner.close())

    def undo(self) -> None:
        if self._acquired_id is not None:
            self._facade.release(self._acquired_id)


class _BlockingChannel:
    """A blocking interface to a channel of an asyncio backend. ``send`` also gets the answers."""

    wants_to_write: Final = False

    def __init__(self, loop: LoopThread, inner: AsyncExtendChannel) -> None:
        self._loop = loop
        self._inner = inner
        self._answers: list[ExtendResult | LockError] = []
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        return self._reader.fileno()

    def send(self, extensions: Sequence[Extension]) -> None:
        self._answers += self._loop.run(self._inner.extend(extensions))
        self._writer.send(b"!")

    def receive(self) -> list[ExtendResult | LockError]:
        self._reader.recv(1)
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._loop.run(self._inner.close())
