"""``with_telemetry``: wrap a backend so that it reports its operations. Without it, no cost.

The wrapper of any blocking backend is a backend too. ``telemetry_async`` is the asyncio version.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from syncguard._backend.listing_and_health import Health, LockPage, Wanted, health_of, listing_of
from syncguard._backend.optional import (
    DEFAULT_MAX_DELAY_MS,
    ExtendChannel,
    Extension,
    OpensExtendChannel,
    Refusal,
    Turn,
    TurnGiver,
    Waiter,
    release_many,
)
from syncguard._backend.required import LockBackend
from syncguard._lock.callback_thread import run_on_callback_thread
from syncguard._lock.handles import Acquired
from syncguard._lock.options import check_backend
from syncguard._lock.release_on_exit import Disposal
from syncguard._lock.sleeping_waiter import open_waiter
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError
from syncguard.lock import Lockable
from syncguard.telemetry_events import IncludeRaw, OnEvent, Reporter
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


def with_telemetry(
    backend: LockBackend, on_event: OnEvent, include_raw: IncludeRaw = False
) -> ReportingBackend:
    """Wrap a backend: every operation calls ``on_event`` with a ``LockEvent``.

    The operation never awaits the callback, and what the callback raises does not affect the
    lock. Events contain the key and the lock id only with ``include_raw``: True, or a function
    that decides for each event.
    """
    check_backend(backend, wants_async=False)
    return ReportingBackend(backend, Reporter(on_event, include_raw, backend.hash))


class ReportingBackend(Lockable):
    """What ``with_telemetry`` returns."""

    def __init__(self, backend: LockBackend, reporter: Reporter) -> None:
        self._inner = self.__wrapped__ = backend
        self._reporter = reporter
        self._observe = reporter.observe

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._inner.capabilities

    @property
    def disposal(self) -> Disposal:
        return self._inner.disposal

    def hash(self, value: str) -> str:
        return self._inner.hash(value)

    def __repr__(self) -> str:
        return f"with_telemetry({self._inner!r})"

    def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended:
        with self._observe("acquire", key=key) as seen:
            result = self._inner.acquire(key, ttl_ms, holder=holder, signal=signal)
            if isinstance(result, Contended):
                seen.ended(False, "locked")
                return result
            seen.granted(result)
            return dataclasses.replace(result, backend=self)

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        with self._observe("release", lock_id=lock_id) as seen:
            result = self._inner.release(lock_id, signal=signal)
            seen.ended(result.ok, result.reason)
            return result

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        results = release_many(self._inner, lock_ids)
        for lock_id, result in zip(lock_ids, results, strict=True):
            with contextlib.suppress(LockError), self._observe("release", lock_id=lock_id) as seen:
                if isinstance(result, LockError):
                    raise result
                seen.ended(result.ok, result.reason)
        return results

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        with self._observe("extend", lock_id=lock_id) as seen:
            result = self._inner.extend(lock_id, ttl_ms, signal=signal)
            seen.ended(result.ok, result.reason)
            return result

    def adopt(
        self,
        lock_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | NotAdopted:
        """Reported as ``extend``: the lock stays held, by another holder."""
        with self._observe("extend", lock_id=lock_id) as seen:
            result = self._inner.adopt(lock_id, ttl_ms, holder=holder, signal=signal)
            if isinstance(result, NotAdopted):
                seen.ended(False, result.reason)
                return result
            seen.granted(result)
            return dataclasses.replace(result, backend=self)

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        with self._observe("isLocked", key=key) as seen:
            locked = self._inner.is_locked(key, signal=signal)
            seen.ended(locked)
            return locked

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            info = self._inner.lookup(key=key, lock_id=lock_id, signal=signal)
            seen.ended(info is not None)
            return info

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            info = self._inner.lookup_raw(key=key, lock_id=lock_id, signal=signal)
            seen.ended(info is not None)
            return info

    def live_locks(self, limit: int = 100, offset: int = 0) -> list[LockInfo]:
        return listing_of(self._inner).live_locks(limit, offset)

    def count_live_locks(self) -> int:
        return listing_of(self._inner).count_live_locks()

    def page_raw(self, limit: int = 100, offset: int = 0) -> LockPage:
        return listing_of(self._inner).page_raw(limit, offset)

    def find_raw(
        self,
        is_wanted: Wanted,
        at_most: int = 1,
        *,
        fence: str = "",
        acquired_at_ms: int | None = None,
    ) -> list[LockInfoDebug]:
        return listing_of(self._inner).find_raw(
            is_wanted, at_most, fence=fence, acquired_at_ms=acquired_at_ms
        )

    def health(self) -> Health:
        return health_of(self._inner).health()

    def force_release(self, key_hash: str, *, fence: str, lock_id_hash: str) -> ReleaseResult:
        inner = listing_of(self._inner)
        with self._observe("release", key_hash=key_hash, lock_id_hash=lock_id_hash) as seen:
            result = inner.force_release(key_hash, fence=fence, lock_id_hash=lock_id_hash)
            seen.ended(result.ok, result.reason)
            return result

    def open_waiter(self, key: str) -> Waiter:
        return _ReportingWaiter(self, open_waiter(self._inner, key), key)

    def next_turn(
        self,
        key: str,
        *,
        place_ms: int = 0,
        held_ms: int = 0,
        max_wait_ms: int = 0,
        max_delay_ms: int = DEFAULT_MAX_DELAY_MS,
    ) -> Turn | None:
        """Not reported: it acquires and releases nothing."""
        if not isinstance(self._inner, TurnGiver):
            return None
        return self._inner.next_turn(
            key,
            place_ms=place_ms,
            held_ms=held_ms,
            max_wait_ms=max_wait_ms,
            max_delay_ms=max_delay_ms,
        )

    def end_wait(self, key: str, ticket: str) -> None:
        if isinstance(self._inner, TurnGiver):
            self._inner.end_wait(key, ticket)

    def open_extend_channel(self, timeout_ms: float) -> ExtendChannel | None:
        if not isinstance(self._inner, OpensExtendChannel):
            return None
        channel = self._inner.open_extend_channel(timeout_ms)
        # Without a channel the heartbeat calls self.extend, which reports.
        return None if channel is None else _ReportingChannel(self, channel)

    def close(self) -> None:
        """Close the wrapped backend, if it has ``close``."""
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _ReportingWaiter:
    def __init__(self, backend: ReportingBackend, inner: Waiter, key: str) -> None:
        self._backend = backend
        self._key = key
        self._inner = inner
        self.wait = inner.wait
        self.close = inner.close
        self.undo = inner.undo

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        with self._backend._observe("acquire", key=self._key) as seen:
            answer = self._inner.attempt(ttl_ms, holder, wait_ms)
            if isinstance(answer, Refusal):
                seen.ended(False, "locked")
                return answer
            seen.granted(answer)
            return dataclasses.replace(answer, backend=self._backend)


class _ReportingChannel:
    def __init__(self, backend: ReportingBackend, inner: ExtendChannel) -> None:
        self._backend = backend
        self._inner = inner
        self._sent: deque[str] = deque()
        self.fileno = inner.fileno

    @property
    def wants_to_write(self) -> bool:
        return self._inner.wants_to_write

    def send(self, extensions: Sequence[Extension]) -> None:
        self._sent.extend(lock_id for lock_id, _ in extensions)
        self._inner.send(extensions)

    def receive(self) -> list[ExtendResult | LockError]:
        answers = self._inner.receive()
        for answer in answers:
            self._report(answer)
        return answers

    def close(self) -> None:
        self._inner.close()
        while self._sent:  # sent, but never answered
            self._report(LockError("NetworkTimeout"))

    def _report(self, answer: ExtendResult | LockError) -> None:
        # This is the heartbeat thread: a user's callback must not run here.
        run_on_callback_thread(
            partial(self._backend._reporter.report_extension, self._sent.popleft(), answer)
        )
