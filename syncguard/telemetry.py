"""``with_telemetry``: wrap a backend so that it reports its operations. Without it, no cost.

The wrapper of any blocking backend is a backend too. ``telemetry_async`` is the asyncio version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health, LockPage, Wanted, health_of, listing_of
from syncguard._backend.optional import (
    DEFAULT_MAX_DELAY_MS,
    ExtendChannel,
    Extension,
    LockMoved,
    OpensExtendChannel,
    Refusal,
    SpreadsLocks,
    Turn,
    TurnGiver,
    Waiter,
    release_many,
    undo,
)
from syncguard._backend.required import LockBackend
from syncguard._lock.callback_queue import CallbackQueue
from syncguard._lock.handles import Acquired
from syncguard._lock.options import check_backend
from syncguard._lock.sleeping_waiter import attempt, open_waiter
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError
from syncguard.lock import Lockable
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

_extension_events: Final = CallbackQueue(1)
"""Events of heartbeats: one thread, so that they stay in order."""


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


@hides_arguments_of_methods()
class ReportingBackend(Reporting[LockBackend], Lockable):
    """What ``with_telemetry`` returns."""

    def acquire(
        self,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        holder: str | None = None,
        signal: Signal | None = None,
    ) -> Acquired | Contended:
        with self._observe("acquire", key=key) as seen:
            return seen.answered(self._inner.acquire(key, ttl_ms, holder=holder, signal=signal))

    def release(self, lock_id: str, *, signal: Signal | None = None) -> ReleaseResult:
        with self._observe("release", lock_id=lock_id) as seen:
            return seen.answered(self._inner.release(lock_id, signal=signal))

    def release_many(self, lock_ids: Sequence[str]) -> list[ReleaseResult | LockError]:
        results = release_many(self._inner, lock_ids)
        for lock_id, result in zip(lock_ids, results, strict=True):
            seen = self._observe("release", lock_id=lock_id)
            if isinstance(result, LockError):
                seen.failed(result)
            else:
                seen.answered(result)
        return results

    def undo(self, lock_id: str, /, *, key: str | None = None, ttl_ms: int = 0) -> None:
        """Not reported: whether it released the lock is known later, or never."""
        undo(self._inner, lock_id, key=key, ttl_ms=ttl_ms)

    def extend(
        self, lock_id: str, ttl_ms: int = DEFAULT_TTL_MS, *, signal: Signal | None = None
    ) -> ExtendResult:
        with self._observe("extend", lock_id=lock_id) as seen:
            return seen.answered(self._inner.extend(lock_id, ttl_ms, signal=signal))

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
            return seen.answered(self._inner.adopt(lock_id, ttl_ms, holder=holder, signal=signal))

    def is_locked(self, key: str, *, signal: Signal | None = None) -> bool:
        with self._observe("isLocked", key=key) as seen:
            return seen.answered(self._inner.is_locked(key, signal=signal))

    def lookup(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfo | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            return seen.answered(self._inner.lookup(key=key, lock_id=lock_id, signal=signal))

    def lookup_raw(
        self,
        *,
        key: str | None = None,
        lock_id: str | None = None,
        signal: Signal | None = None,
    ) -> LockInfoDebug | None:
        with self._observe("lookup", key=key, lock_id=lock_id) as seen:
            return seen.answered(self._inner.lookup_raw(key=key, lock_id=lock_id, signal=signal))

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
            return seen.answered(
                inner.force_release(key_hash, fence=fence, lock_id_hash=lock_id_hash)
            )

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

    def server_of(self, lock_id: str) -> Hashable | None:
        """Not reported: it sends nothing."""
        return self._inner.server_of(lock_id) if isinstance(self._inner, SpreadsLocks) else None

    def open_server_channel(self, server: Hashable, timeout_ms: float) -> ExtendChannel:
        assert isinstance(self._inner, SpreadsLocks)
        return _ReportingChannel(self, self._inner.open_server_channel(server, timeout_ms))

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
        self._inner = self.__wrapped__ = inner
        self.wait = inner.wait
        self.close = inner.close
        self.undo = inner.undo

    def attempt(self, ttl_ms: int, holder: str | None, wait_ms: int) -> Acquired | Refusal:
        return self._observe(lambda: self._inner.attempt(ttl_ms, holder, wait_ms))

    def attempt_until(
        self, ttl_ms: int, holder: str | None, wait_ms: int, deadline: Deadline
    ) -> Acquired | Refusal:
        return self._observe(lambda: attempt(self._inner, ttl_ms, holder, wait_ms, deadline))

    def _observe(self, make_attempt: Callable[[], Acquired | Refusal]) -> Acquired | Refusal:
        with self._backend._observe("acquire", key=self._key) as seen:
            return seen.answered(make_attempt())


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
            if isinstance(answer, LockMoved):
                self._sent.popleft()  # self.extend follows, and reports
            else:
                self._report(answer)
        return answers

    def close(self) -> None:
        self._inner.close()
        while self._sent:  # sent, but never answered
            self._report(LockError("NetworkTimeout"))

    def _report(self, answer: ExtendResult | LockError) -> None:
        # This is the heartbeat thread: a user's callback must not run here.
        _extension_events.put(
            partial(self._backend._reporter.report_extension, self._sent.popleft(), answer)
        )
