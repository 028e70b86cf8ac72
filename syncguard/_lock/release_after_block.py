"""Release on exit: never raises, bounded time.

Used by ``with backend.acquire(...)`` and by ``lock()``. Errors go to a callback. The default
callback logs them, without key and lock id.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from syncguard._lock.callback_queue import CallbackQueue
from syncguard._lock.callbacks import run_in_background
from syncguard._lock.cancellation import settle
from syncguard.errors import LockError, invalid_argument, is_interrupt
from syncguard.keys import validate_ttl_ms
from syncguard.types import OnReleaseError, ReleaseErrorContext, ReleaseResult

_logger = logging.getLogger("syncguard")

_RELEASE_THREADS: Final = 256
"""So many releases with a time limit wait for servers at once. The next one may miss its limit."""

_releases: Final = CallbackQueue(_RELEASE_THREADS)


def log_release_error(error: LockError, context: ReleaseErrorContext) -> None:
    """The default callback: log that a release failed and why, without key and lock id."""
    _logger.error(
        "Could not release a lock at the end of a %s block (%s: %s); it expires after its TTL.",
        context.source,
        error.code,
        error,
    )


def check_callback(name: str, callback: object, *, may_be_async: bool = True) -> None:
    """Raise InvalidArgument unless the callback is callable or None."""
    if callback is None:
        return
    if not callable(callback):
        raise invalid_argument(f"{name} must be callable")
    if not may_be_async and inspect.iscoroutinefunction(callback):
        raise invalid_argument(
            f"{name} must be a plain function: a blocking backend cannot await an async def"
        )


@dataclass(frozen=True, slots=True)
class Disposal:
    """How a backend's locks are released on exit: the callback for errors, and the time limit."""

    on_release_error: OnReleaseError = log_release_error
    timeout_ms: int | None = None
    begins_at_once: bool = False
    """In asyncio, a release begins in the caller's task; see ``settle``."""

    @classmethod
    def of(
        cls,
        on_release_error: OnReleaseError | None,
        timeout_ms: int | None,
        *,
        begins_at_once: bool = False,
    ) -> Disposal:
        check_callback("on_release_error", on_release_error)
        if timeout_ms is not None:
            validate_ttl_ms(timeout_ms, "dispose_timeout_ms")
        return cls(on_release_error or log_release_error, timeout_ms, begins_at_once)

    def release(
        self, release: Callable[[], ReleaseResult], context: Callable[[], ReleaseErrorContext]
    ) -> ReleaseResult | None:
        """Release; None if it failed and the callback was called.

        Raises only interrupts, such as a time limit or Ctrl-C, and then tries the release once
        more first.
        """
        try:
            if self.timeout_ms is None:
                return release()
            return _within(release, self.timeout_ms)
        except BaseException as error:
            if isinstance(error, LockError) and not is_interrupt(error):
                self._report_error(error, context)
                return None
            with contextlib.suppress(LockError):
                release()
            raise

    async def release_async(
        self,
        release: Callable[[], Awaitable[ReleaseResult]],
        context: Callable[[], ReleaseErrorContext],
    ) -> ReleaseResult | None:
        """The same for asyncio. If cancelled meanwhile, it finishes the release first."""

        async def releasing() -> ReleaseResult | None:
            try:
                return await _within_async(release, self.timeout_ms)
            except LockError as error:
                # Here, because a cancelled caller does not get the outcome of the release.
                self._report_error(error, context)
                return None

        return await settle(releasing(), begins_at_once=self.begins_at_once)

    def _report_error(self, error: LockError, context: Callable[[], ReleaseErrorContext]) -> None:
        try:
            run_in_background(self.on_release_error(error, context()), _log_failed_callback)
        except Exception as failure:
            _log_failed_callback(failure)


def _log_failed_callback(_failure: BaseException) -> None:
    # No traceback: it may contain the key and the lock id, which the callback got.
    _logger.error("The on_release_error callback failed.")


def _within(release: Callable[[], ReleaseResult], timeout_ms: int) -> ReleaseResult:
    # A thread, because a blocked client cannot be interrupted from outside. It continues after
    # the time limit, so that a slow server still releases the lock before its TTL ends.
    outcome: list[ReleaseResult | BaseException] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            outcome.append(release())
        except BaseException as error:
            outcome.append(error)
            if not isinstance(error, Exception):
                raise  # gevent kills this greenlet
        finally:
            is_done.set()

    _releases.put(run)  # if no thread is available: here, without the time limit
    if not is_done.wait(timeout_ms / 1000):
        raise _timeout_error(timeout_ms)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


async def _within_async(
    release: Callable[[], Awaitable[ReleaseResult]], timeout_ms: int | None
) -> ReleaseResult:
    if timeout_ms is None:
        return await release()
    task = asyncio.ensure_future(release())
    done, _ = await asyncio.wait({task}, timeout=timeout_ms / 1000)
    if not done:
        task.add_done_callback(_ignore_outcome)
        raise _timeout_error(timeout_ms)
    return task.result()


def _ignore_outcome(task: asyncio.Future[ReleaseResult]) -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the timeout was reported already


def _timeout_error(timeout_ms: int) -> LockError:
    return LockError("NetworkTimeout", f"the release did not finish within {timeout_ms} ms")
