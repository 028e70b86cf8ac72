"""``syncguard.aio.with_telemetry``: the same as ``telemetry``, for asyncio backends."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Sequence
from typing import TYPE_CHECKING

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import (
    Health,
    LockPage,
    Wanted,
    async_health_of,
    async_listing_of,
)
from syncguard._backend.optional import (
    AsyncExtendChannel,
    AsyncOpensExtendChannel,
    AsyncSpreadsLocks,
    AsyncWaiter,
    Extension,
    LockMoved,
    Refusal,
)
from syncguard._backend.required import AsyncLockBackend
from syncguard._lock.handles import AsyncAcquired
from syncguard._lock.options import check_backend
from syncguard._lock.sleeping_waiter import attempt_async, open_async_waiter
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError
from syncguard.lock_async import AsyncLockable
from syncguard.telemetry_events import IncludeRaw, OnEvent, Reporter, Reporting
from syncguard.traceback_locals import hides_arguments_of_methods
from syncguard.types import (
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


def with_telemetry(
    backend: AsyncLockBackend, on_event: OnEvent, include_raw: IncludeRaw = False
) -> AsyncReportingBackend:
    """Wrap a backend: every operation calls ``on_event`` with a ``LockEvent``.

    The callback may be ``async def``. The operation never awaits it, and what it raises does not
    affect the lock.
    """
    check_backend(backend, wants_async=True)
    return AsyncReportingBackend(backend, Reporter(on_event, include_raw, backend.hash))


@hides_arguments_of_methods()
class AsyncReportingBackend(Reporting[AsyncLockBackend], AsyncLockable):
    """What ``with_telemetry`` returns."""

    async def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | Contended:
        with self._observe("acquire", key=key) as seen:
            return seen.answered(
                await self._inner.acquire(key, ttl_ms, holder=holder, signal=signal)
            )

    async def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        with self._observe("release", lock_id=lock_id) as seen:
            return seen.answered(await self._inner.release(lock_id, signal=signal))

    async def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        with self._observe("extend", lock_id=lock_id) as seen:
            return seen.answered(await self._inner.extend(lock_id, ttl_ms, signal=signal))

    async def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> AsyncAcquired | NotAdopted:
        """Reported as ``extend``: the lock stays held, by another holder."""
        with self._observe("extend", lock_id=lock_id) as seen:
            return seen.answered(
                await self._inner.adopt(lock_id, ttl_ms, holder=holder, signal=signal)
            )

    async def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        with self._observe("isLocked", key=key) as seen:
            return seen.answered(await self._inner.is_locked(key, signal=signal))

    async def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            return seen.answered(await self._inner.lookup(key=key, lock_id=lock_id, signal=signal))

    async def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            return seen.answered(
                await self._inner.lookup_raw(key=key, lock_id=lock_id, signal=signal)
            )

    async def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        return await async_listing_of(self._inner).live_locks(limit, offset)

    async def count_live_locks(self) -> int:
        return await async_listing_of(self._inner).count_live_locks()

    async def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        return await async_listing_of(self._inner).page_raw(limit, offset)

    async def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        return await async_listing_of(self._inner).find_raw(
            is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
        )

    async def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        inner = async_listing_of(self._inner)
        with self._observe("release", key_hash=key_hash, lock_id_hash=lock_id_hash) as seen:
            return seen.answered(
                await inner.force_release(key_hash, fence=fence, lock_id_hash=lock_id_hash)
            )

    async def health(self) -> Health:
        return await async_health_of(self._inner).health()

    def open_waiter(self, key: str) -> AsyncWaiter:
        return _ReportingWaiter(self, open_async_waiter(self._inner, key), key)

    async def open_extend_channel(self, timeout_ms: float) -> AsyncExtendChannel | None:
        if not isinstance(self._inner, AsyncOpensExtendChannel):
            return None
        channel = await self._inner.open_extend_channel(timeout_ms)
        # Without a channel the heartbeat awaits self.extend, which reports.
        return None if channel is None else _ReportingChannel(self, channel)

    def server_of(self, lock_id: str) -> Hashable | None:
        """Not reported: it sends nothing."""
        inner = self._inner
        return inner.server_of(lock_id) if isinstance(inner, AsyncSpreadsLocks) else None

    async def open_server_channel(self, server: Hashable, timeout_ms: float) -> AsyncExtendChannel:
        assert isinstance(self._inner, AsyncSpreadsLocks)
        return _ReportingChannel(self, await self._inner.open_server_channel(server, timeout_ms))

    async def aclose(self) -> None:
        """Close the wrapped backend, if it has ``aclose``."""
        close = getattr(self._inner, "aclose", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


class _ReportingWaiter:
    def __init__(self, backend: AsyncReportingBackend, inner: AsyncWaiter, key: str) -> None:
        self._backend = backend
        self._key = key
        self._inner = self.__wrapped__ = inner
        self.wait = inner.wait
        self.close = inner.close

    async def attempt(
        self, ttl_ms: int, holder: str | None, wait_ms: int
    ) -> AsyncAcquired | Refusal:
        return await self._observe(self._inner.attempt(ttl_ms, holder, wait_ms))

    async def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> AsyncAcquired | Refusal:
        return await self._observe(attempt_async(self._inner, ttl_ms, holder, wait_ms, deadline))

    async def _observe(
        self, attempt: Awaitable[AsyncAcquired | Refusal]
    ) -> AsyncAcquired | Refusal:
        with self._backend._observe("acquire", key=self._key) as seen:
            return seen.answered(await attempt)


class _ReportingChannel:
    def __init__(self, backend: AsyncReportingBackend, inner: AsyncExtendChannel) -> None:
        self._backend = backend
        self._inner = inner
        self.close = inner.close

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        try:
            answers = await self._inner.extend(extensions)
        except BaseException:  # also CancelledError: the heartbeat cancels at its time limit
            self._report(extensions, [LockError("NetworkTimeout")] * len(extensions))
            raise
        self._report(extensions, answers)
        return answers

    def _report(
        self, extensions: Sequence[Extension], answers: Sequence[ExtendResult | LockError]
    ) -> None:
        for (lock_id, _), answer in zip(extensions, answers, strict=True):
            if isinstance(answer, LockMoved):
                continue  # self.extend follows, and reports
            self._backend._reporter.report_extension(lock_id, answer)
