"""``lock()``: acquire with retries, hold, release however the block ends. Blocking.

``acquire_with_retries``, ``options`` and ``schedule`` decide what to do; this module calls the
backend and blocks. ``lock_async`` does the same for asyncio.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, ParamSpec, TypeVar

from syncguard._backend.deadline import Deadline
from syncguard._backend.optional import Refusal, Waiter
from syncguard._backend.required import LockBackend, check_signal
from syncguard._heartbeat import heartbeat
from syncguard._heartbeat.heartbeat_thread import Watch
from syncguard._heartbeat.on_lost import announce
from syncguard._lock.acquire_with_retries import Acquiring, Attempt, acquiring
from syncguard._lock.block_state import OneBlock, lock_lost, must_release, was_lost
from syncguard._lock.decorated_function import check_decorated, checked_result
from syncguard._lock.handles import Acquired
from syncguard._lock.held import Held, OnLost
from syncguard._lock.options import (
    Options,
    check_backend,
    granted_too_late,
    in_use_error,
    may_enter,
)
from syncguard._lock.release_after_block import check_callback
from syncguard._lock.sleeping_waiter import attempt, open_waiter
from syncguard.clock import monotonic_ms
from syncguard.constants import DEFAULT_TTL_MS
from syncguard.errors import LockError, NetworkTimeout, is_interrupt
from syncguard.short_ttl_warning import SHORT_TTL_MS, warn_of_short_ttl
from syncguard.traceback_locals import clear_locals, hides_arguments
from syncguard.types import DEFAULT_ACQUISITION, Acquisition, OnReleaseError, ReleaseResult, Signal

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")


@hides_arguments
def lock(
    backend: LockBackend,
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
) -> Lock:
    """A lock for a ``with`` block or, as a decorator, for a function.

    Waits for the lock as ``acquisition`` says, and raises ``AcquisitionTimeout`` if it cannot
    acquire it. ``auto_extend`` extends it while the block runs, for at most ``max_hold_ms``. If
    the lock is lost meanwhile, ``on_lost`` is called, and leaving the block raises LockLost.

    If this code holds the lock already, entering raises ``InvalidArgument`` at once. With
    ``reentrant=True`` it enters again: it gets the same fence, and only the outer block releases.
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
    return Lock(backend, options)


def hold(
    backend: LockBackend,
    acquired: Acquired,
    *,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    on_lost: OnLost | None = None,
    on_release_error: OnReleaseError | None = None,
) -> Lock:
    """Hold a lock that is acquired already, such as ``adopt`` returns, for one ``with`` block."""
    options = Options.for_grant(
        acquired,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        on_lost=on_lost,
        on_release_error=on_release_error,
    )
    return Lock(backend, options, acquired)


class Lock(OneBlock[LockBackend, Acquired, Watch]):
    """What ``lock()`` returns: a context manager for one block at a time, and a decorator."""

    def __init__(
        self,
        backend: LockBackend,
        options: Options,
        acquired: Acquired | None = None,
        *,
        function: Callable[..., object] | None = None,
    ) -> None:
        check_backend(backend, wants_async=False)
        if options.on_release_error is not None:
            check_callback("on_release_error", options.on_release_error, may_be_async=False)
        super().__init__(backend, options, acquired, function=function)
        self._answer: ReleaseResult | LockError | None = None
        """The result of the release, if ``release_together`` released the lock already."""

    def __enter__(self) -> Held:
        is_taken, waiter = False, None
        try:
            if not may_enter(self._free, self._held):
                is_taken = True
                raise in_use_error()
            acquired, self._acquired = self._acquired, None
            if acquired is not None:
                return self._hold(acquired)
            held = self._enter_again()
            if held is not None:
                return held
            if self._options.ttl_ms < SHORT_TTL_MS:
                warn_of_short_ttl(self._options.ttl_ms, self._function)
            waiter = open_waiter(self._backend, self._options.key)
            return self._hold(self._acquire(waiter))
        except BaseException as error:
            if not is_taken:
                self._reset()
            if waiter is not None and is_interrupt(error):
                # The last attempt may have acquired the lock, and nothing else would release it.
                waiter.undo()
            clear_locals(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            held, block = self._held, self._block
            assert held is not None
            assert block is not None
            block.leave()
            lost = must_release(held, block) and self._end_hold(held)
            self._held, self._block, self._free = None, None, [None]
        except BaseException as interrupt:
            held, block = self._held, self._block
            self._reset()
            if held and block and must_release(held, block) and is_interrupt(interrupt):
                with contextlib.suppress(LockError):
                    self._release_of(held)()
            raise
        if lost:
            announce(held)
            if error is None:
                raise lock_lost(self._options.key, held)

    def _end_hold(self, held: Held) -> bool:
        """Stop extending the lock and release it, or keep it. True: it was lost before."""
        if self._watch is not None:
            heartbeat.unwatch(self._watch)
        held.end()
        options = self._options
        released = options.disposal_of(self._backend.disposal, held).release(
            self._release_of(held), partial(options.release_context, held)
        )
        return was_lost(held, released)

    def _release_of(self, held: Held) -> Callable[[], ReleaseResult]:
        """The function that ends the hold on the server."""
        answer, self._answer = self._answer, None
        if answer is not None:
            return partial(_known_result, answer)
        if held.kept is not None:
            return partial(self._keep, held.lock_id, *held.kept)
        return partial(self._backend.release, held.lock_id)

    def _keep(self, lock_id: str, ttl_ms: int | None) -> ReleaseResult:
        if ttl_ms is None:
            return ReleaseResult(True, assumed=True)  # no request was sent
        if self._watch is not None:
            heartbeat.settle(self._watch)
        extended = self._backend.extend(lock_id, ttl_ms)
        return ReleaseResult(extended.ok, extended.reason)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        check_decorated(function, wants_async=False)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with Lock(self._backend, self._options, function=function):
                return checked_result(function(*args, **kwargs), wants_async=False)

        return locked

    def _acquire(self, waiter: Waiter) -> Acquired:
        options = self._options
        steps: Acquiring[Acquired] = acquiring(options.acquisition, monotonic_ms, key=options.key)
        try:
            answer: Acquired | Refusal | NetworkTimeout | bool | None = None
            while True:
                try:
                    step = next(steps) if answer is None else steps.send(answer)
                except StopIteration as done:
                    acquired: Acquired = done.value
                    return acquired
                if isinstance(step, Attempt):
                    if options.signal is not None:
                        check_signal(options.signal)
                    deadline = Deadline(step.deadline_ms, options.signal)
                    try:
                        answer = attempt(
                            waiter, options.ttl_ms, options.holder, step.wait_ms, deadline
                        )
                    except NetworkTimeout as error:
                        answer = error
                        continue
                    if not isinstance(answer, Refusal) and granted_too_late(answer):
                        self._backend.release(answer.lock_id)
                        answer = Refusal()
                else:
                    answer = waiter.wait(step.ms, options.signal)
        finally:
            waiter.close()

    def _hold(self, acquired: Acquired) -> Held:
        options = self._options
        held = self._held = Held(acquired, options.on_lost)
        try:
            self._enter(held)
            if options.watched:
                self._watch = heartbeat.watch(
                    held,
                    self._backend,
                    options.ttl_ms,
                    renews=options.auto_extend,
                    max_hold_ms=options.max_hold_ms,
                )
        except BaseException:  # the heartbeat thread did not start, or an interrupt
            self._held = None
            self._backend.release(held.lock_id)
            raise
        return held


def _known_result(answer: ReleaseResult | LockError) -> ReleaseResult:
    if isinstance(answer, LockError):
        raise answer
    return answer


class Lockable:
    """Gives a backend the method ``lock``."""

    is_async: ClassVar = False

    @hides_arguments
    def lock(
        self: LockBackend,
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
    ) -> Lock:
        """``syncguard.lock`` on this backend."""
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
