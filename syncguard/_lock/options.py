"""The options of ``lock()``, checked once, and the decisions at the end of its block.

Shared by the blocking and the asyncio lock; no I/O.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Final

from syncguard._backend.required import check_signal
from syncguard._lock.handles import Grant
from syncguard._lock.held import Held, OnLost
from syncguard._lock.release_after_block import Disposal, check_callback
from syncguard.clock import holder_clock_ms
from syncguard.current import Block, block_here
from syncguard.errors import LockError, invalid_argument
from syncguard.keys import normalize_and_validate_key, validate_holder, validate_ttl_ms
from syncguard.types import (
    DEFAULT_ACQUISITION,
    Acquisition,
    OnReleaseError,
    ReleaseErrorContext,
    Signal,
)

_LOST_RELEASE_MS: Final = 1_000
"""Time limit for releasing a lock that is lost already: the server may be down."""

_NESTED: Final = (
    "this code holds this lock already: pass reentrant=True to enter it again, or remove the"
    " inner lock"
)


@dataclass(slots=True)  # not frozen: creating one would take twice as long
class Options:
    """The options of one ``lock(...)``, for any backend."""

    key: str = field(repr=False)
    ttl_ms: int
    acquisition: Acquisition
    auto_extend: bool
    max_hold_ms: int | None
    holder: str | None
    on_lost: OnLost | None
    on_release_error: OnReleaseError | None
    signal: Signal | None
    is_granted: bool = False
    """The lock is acquired already: options for acquiring are not checked."""
    reentrant: bool = False

    def __post_init__(self) -> None:
        self.key = normalize_and_validate_key(self.key)
        validate_ttl_ms(self.ttl_ms)
        if not self.is_granted:
            self._check_acquiring()
        if not isinstance(self.auto_extend, bool):
            raise invalid_argument("auto_extend must be True or False")
        if not isinstance(self.reentrant, bool):
            raise invalid_argument("reentrant must be True or False")
        if self.max_hold_ms is not None:
            validate_ttl_ms(self.max_hold_ms, "max_hold_ms")
            if not self.auto_extend:
                raise invalid_argument(
                    "max_hold_ms limits auto_extend, so it needs auto_extend=True"
                )
        if self.on_lost is not None:
            check_callback("on_lost", self.on_lost)
        if self.on_release_error is not None:
            check_callback("on_release_error", self.on_release_error)

    def _check_acquiring(self) -> None:
        if self.holder is not None:
            validate_holder(self.holder)
        if not isinstance(self.acquisition, Acquisition):
            raise invalid_argument("acquisition must be an Acquisition")
        if self.signal is not None and not callable(getattr(self.signal, "is_set", None)):
            check_signal(self.signal)  # raises with the reason

    @classmethod
    def for_grant(
        cls,
        grant: Grant,
        *,
        auto_extend: bool,
        max_hold_ms: int | None,
        on_lost: OnLost | None,
        on_release_error: OnReleaseError | None,
    ) -> Options:
        """For a lock that is held already."""
        if not isinstance(grant, Grant):
            raise invalid_argument(
                f"hold takes what a successful acquire or adopt returns, not {type(grant).__name__}"
            )
        return cls(
            grant.key,
            grant.ttl_ms,
            DEFAULT_ACQUISITION,
            auto_extend,
            max_hold_ms,
            None,
            on_lost,
            on_release_error,
            signal=None,
            is_granted=True,
        )

    def block_around(self, backend: object) -> Block | None:
        """The block in which this code holds the same lock. Raises unless it may enter again."""
        block = block_here(backend, self.key)
        if block is not None:
            if not self.reentrant:
                raise invalid_argument(_NESTED)
            block.held.ensure_held()
        return block

    @property
    def watched(self) -> bool:
        """Whether the heartbeat is needed: to extend, or to call ``on_lost``."""
        return self.auto_extend or self.on_lost is not None

    def disposal_of(self, backend_disposal: Disposal, held: Held) -> Disposal:
        """How to release after ``held.end()``: the backend's options, overridden by this lock's."""
        timeout_ms = backend_disposal.timeout_ms
        if held.known_lost or held.ended_late:
            timeout_ms = min(timeout_ms or _LOST_RELEASE_MS, _LOST_RELEASE_MS)
        elif self.on_release_error is None:
            return backend_disposal
        return replace(
            backend_disposal,
            on_release_error=self.on_release_error or backend_disposal.on_release_error,
            timeout_ms=timeout_ms,
        )

    def release_context(self, held: Held) -> ReleaseErrorContext:
        return ReleaseErrorContext(key=self.key, lock_id=held.lock_id, source="lock")


def check_backend(backend: object, *, wants_async: bool) -> None:
    """Raise InvalidArgument for what is not a backend, or is one of the other kind."""
    kind = type(backend)
    acquire = getattr(backend, "acquire", None)
    # SyncGuard's backends set is_async. Without it, a plain method may still return an awaitable.
    is_async = getattr(kind, "is_async", None)
    if is_async is wants_async and callable(acquire):
        return
    if isinstance(backend, type) or not callable(acquire):
        example = "AsyncRedisBackend" if wants_async else "RedisBackend"
        name = f"the class {backend.__name__}" if isinstance(backend, type) else kind.__name__
        raise invalid_argument(f"not a backend: {name}; pass one such as {example}(client)")
    if is_async is None:
        is_async = wants_async or inspect.iscoroutinefunction(acquire)
    if is_async != wants_async:
        raise invalid_argument(
            "syncguard.aio takes an asyncio backend; for a blocking one use syncguard"
            if wants_async
            else "syncguard takes a blocking backend; for an asyncio one use syncguard.aio"
        )


def may_enter(free: list[None], held: Held | None) -> bool:
    """Whether a block may begin. If two threads call this at once, only one gets True."""
    try:
        free.pop()  # atomic
    except IndexError:
        # In a forked child the parent's block does not count.
        return held is not None and held.in_forked_child
    return True


def in_use_error() -> LockError:
    return invalid_argument("this lock() is in use already: create a new one for each block")


def granted_too_late(grant: Grant) -> bool:
    """Whether a grant arrived after its TTL had ended already."""
    return holder_clock_ms() >= grant.sent_at_ms + grant.ttl_ms
