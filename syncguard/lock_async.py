"""``syncguard.aio.lock``: acquire with retries, hold, release however the block ends. For asyncio.

``acquire_with_retries``, ``options`` and ``schedule`` decide what to do; this module awaits the
backend. ``lock`` does the same for blocking code. If a task is cancelled while it acquires or
releases, its lock is released.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.optional import Refusal
from syncguard._backend.required import AsyncLockBackend, check_signal
from syncguard._heartbeat import heartbeat_async as heartbeat
from syncguard._heartbeat.on_lost import announce_async
from syncguard._lock.acquire_with_retries import Acquiring, Attempt, acquiring
from syncguard._lock.block_state import OneBlock, lock_lost, must_release, was_lost
from syncguard._lock.cancellation import settle
from syncguard._lock.decorated_function import check_decorated, checked_result
from syncguard._lock.handles import AsyncAcquired
from syncguard._lock.held import Held, OnLost
from syncguard._lock.options import (
    Options,
    check_backend,
    granted_too_late,
    in_use_error,
    may_enter,
)
from syncguard._lock.sleeping_waiter import attempt_async, open_async_waiter
from syncguard.clock import monotonic_ms
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import NetworkTimeout
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import clear_locals, hides_arguments
from syncguard.types import DEFAULT_ACQUISITION, Acquisition, OnReleaseError, ReleaseResult, Signal

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


@hides_arguments
def lock(
    backend: AsyncLockBackend,
    key: str,
    ttl_ms: int = DEFAULT_TTL_MS,
    *,
    acquisition: Acquisition = DEFAULT_ACQUISITION,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    holder: str | None = None,
    on_lost: OnLost | None = None,
    on_release_error: OnReleaseError | None = None,
    signal: Signal | None = None,
    reentrant: bool = False,
) -> AsyncLock:
    """A lock for an ``async with`` block or, as a decorator, for an ``async def`` function.

    The same as ``syncguard.lock``, with the same options; the callbacks may be ``async def``.
    """
    options = Options(
        key,
        ttl_ms,
        acquisition,
        auto_extend,
        max_hold_ms,
        holder,
        on_lost,
        on_release_error,
        signal,
        reentrant=reentrant,
    )
    return AsyncLock(backend, options)


def hold(
    backend: AsyncLockBackend,
    acquired: AsyncAcquired,
    *,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    on_lost: OnLost | None = None,
    on_release_error: OnReleaseError | None = None,
) -> AsyncLock:
    """Hold a lock that is acquired already, such as ``adopt`` returns, for one block."""
    options = Options.for_grant(
        acquired,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        on_lost=on_lost,
        on_release_error=on_release_error,
    )
    return AsyncLock(backend, options, acquired)


class AsyncLock(OneBlock[AsyncLockBackend, AsyncAcquired, heartbeat.AsyncWatch]):
    """What ``lock()`` returns: a context manager for one block at a time, and a decorator."""

    def __init__(
        self,
        backend: AsyncLockBackend,
        options: Options,
        acquired: AsyncAcquired | None = None,
        *,
        function: Callable[..., object] | None = None,
    ) -> None:
        check_backend(backend, wants_async=True)
        super().__init__(backend, options, acquired, function=function)

    async def __aenter__(self) -> Held:
        if not may_enter(self._free, self._held):
            raise in_use_error()
        try:
            acquired, self._acquired = self._acquired, None
            held = self._enter_again() if acquired is None else None
            return held or self._hold(acquired or await self._acquire())
        except BaseException as error:
            self._reset()
            clear_locals(error)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        held, block, watch = self._held, self._block, self._watch
        self._reset()
        assert held is not None
        assert block is not None
        if not must_release(held, block):
            return
        if watch is not None:
            heartbeat.unwatch(watch)
        held.end()
        options = self._options
        released = await options.disposal_of(self._backend.disposal, held).release_async(
            self._release_of(held, watch), partial(options.release_context, held)
        )
        if was_lost(held, released):
            announce_async(held)
            if error is None:
                raise lock_lost(options.key, held)

    def _release_of(
        self, held: Held, watch: heartbeat.AsyncWatch | None
    ) -> Callable[[], Awaitable[ReleaseResult]]:
        """The function that ends the hold on the server."""
        if held.kept is not None:
            return partial(self._keep, watch, held.lock_id, *held.kept)
        return partial(self._backend.release, held.lock_id)

    async def _keep(
        self, watch: heartbeat.AsyncWatch | None, lock_id: str, ttl_ms: int | None
    ) -> ReleaseResult:
        if ttl_ms is None:
            return ReleaseResult(True, assumed=True)  # no request was sent
        if watch is not None:
            await heartbeat.settle(watch)
        extended = await self._backend.extend(lock_id, ttl_ms)
        return ReleaseResult(extended.ok, extended.reason)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        check_decorated(function, wants_async=True)

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AsyncLock(self._backend, self._options, function=function):
                return checked_result(await function(*args, **kwargs), wants_async=True)

        return locked

    async def _acquire(self) -> AsyncAcquired:
        options = self._options
        if options.ttl_ms < SHORT_TTL_MS:
            warn_of_short_ttl(options.ttl_ms, self._function)
        steps: Acquiring[AsyncAcquired] = acquiring(
            options.acquisition, monotonic_ms, key=options.key
        )
        waiter = open_async_waiter(self._backend, options.key)
        acquired: AsyncAcquired | None = None
        try:
            answer: AsyncAcquired | Refusal | NetworkTimeout | bool | None = None
            while acquired is None:
                try:
                    step = next(steps) if answer is None else steps.send(answer)
                except StopIteration as done:
                    acquired = done.value
                    continue
                if isinstance(step, Attempt):
                    if options.signal is not None:
                        check_signal(options.signal)
                    deadline = Deadline(step.deadline_ms, options.signal)
                    try:
                        answer = await attempt_async(
                            waiter, options.ttl_ms, options.holder, step.wait_ms, deadline
                        )
                    except NetworkTimeout as error:
                        answer = error
                        continue
                    if not isinstance(answer, Refusal) and granted_too_late(answer):
                        await self._backend.release(answer.lock_id)
                        answer = Refusal()
                else:
                    answer = await waiter.wait(step.ms, options.signal)
        finally:
            at_once = self._backend.disposal.begins_at_once
            try:
                await settle(waiter.close(), begins_at_once=at_once)
            except BaseException:
                # Cancelled after the lock was acquired, before the caller got it.
                if acquired is not None:
                    release = self._backend.release(acquired.lock_id)
                    await settle(release, begins_at_once=at_once)
                raise
        return acquired

    def _hold(self, acquired: AsyncAcquired) -> Held:
        options = self._options
        held = Held(acquired, options.on_lost)
        self._enter(held)
        if options.watched:
            self._watch = heartbeat.watch(
                held,
                self._backend,
                options.ttl_ms,
                renews=options.auto_extend,
                max_hold_ms=options.max_hold_ms,
            )
        return held


class AsyncLockable:
    """Gives an asyncio backend the method ``lock``."""

    is_async: ClassVar = True

    @hides_arguments
    def lock(
        self: AsyncLockBackend,
        key: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        *,
        acquisition: Acquisition = DEFAULT_ACQUISITION,
        auto_extend: bool = False,
        max_hold_ms: int | None = None,
        holder: str | None = None,
        on_lost: OnLost | None = None,
        on_release_error: OnReleaseError | None = None,
        signal: Signal | None = None,
        reentrant: bool = False,
    ) -> AsyncLock:
        """``syncguard.aio.lock`` on this backend."""
        return lock(
            self,
            key,
            ttl_ms,
            acquisition=acquisition,
            auto_extend=auto_extend,
            max_hold_ms=max_hold_ms,
            holder=holder,
            on_lost=on_lost,
            on_release_error=on_release_error,
            signal=signal,
            reentrant=reentrant,
        )
