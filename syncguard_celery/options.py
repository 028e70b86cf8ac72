"""The options of a task's lock, checked when the task is decorated. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from syncguard import DEFAULT_TTL_MS, LockBackend
from syncguard.backend import invalid_argument
from syncguard_celery.interrupt_on_loss import runs_under_eventlet

if TYPE_CHECKING:
    from typing_extensions import TypeIs

At = Literal["run", "publish"]
Policy = Literal["retry", "skip", "wait", "fail"]
LostMode = Literal["raise", "retry", "signal"]
UnavailablePolicy = Literal["retry", "fail"]

PolicySource = Policy | Callable[..., Policy]
UnavailableSource = UnavailablePolicy | Callable[..., UnavailablePolicy]
LostSource = LostMode | Callable[..., object]
BackendSource = LockBackend | Callable[[], LockBackend] | str
"""A backend, a callable that makes one when it is first needed, or a URL."""

POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
UNAVAILABLE_POLICIES: Final[tuple[UnavailablePolicy, ...]] = get_args(UnavailablePolicy)

DEFAULT_PENDING_TTL_MS: Final = 3_600_000
"""How long a publish-time lock stays held while its message waits for a worker."""

DEFAULT_UNAVAILABLE_TIMEOUT_MS: Final = 600_000
"""How long an outage of the lock's server may last before tasks fail."""

_MIN_UNAVAILABLE_TIMEOUT_MS: Final = 1_000
_UNAVAILABLE_TIMEOUT_TOO_SHORT: Final = (
    "unavailable_timeout_ms must be at least 1000: a server that is down is tried again after one "
    "second at the earliest. The unit is milliseconds: ten minutes are 600_000"
)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The options of one ``@locked_task(...)`` or ``@locked(...)``, except the key."""

    backend: BackendSource | None = field(default=None, repr=False)
    using: str | None = None
    at: At = "run"
    on_contention: PolicySource = "retry"
    contention_timeout_ms: int | None = None
    skip_result: object = field(default=None, repr=False)
    ttl_ms: int = DEFAULT_TTL_MS
    auto_extend: bool = True
    max_hold_ms: int | None = None
    min_hold_ms: int | None = None
    pending_ttl_ms: int = DEFAULT_PENDING_TTL_MS
    on_lost: LostSource = "raise"
    reentrant: bool = True
    on_unavailable: UnavailableSource = "retry"
    unavailable_timeout_ms: int = DEFAULT_UNAVAILABLE_TIMEOUT_MS

    def __post_init__(self) -> None:
        for name in ("ttl_ms", "pending_ttl_ms", "unavailable_timeout_ms"):
            _require_ms(name, getattr(self, name))
        for name in ("contention_timeout_ms", "max_hold_ms", "min_hold_ms"):
            if getattr(self, name) is not None:
                _require_ms(name, getattr(self, name))
        if not isinstance(self.reentrant, bool):
            raise invalid_argument("reentrant must be True or False")
        if self.max_hold_ms is not None and not self.auto_extend:
            raise invalid_argument("max_hold_ms limits auto_extend, so it needs auto_extend=True")
        if self.backend is not None:
            require_backend_source("backend", self.backend)
            if self.using is not None:
                raise invalid_argument("give either backend= or using=, not both")
        _require_choice("at", self.at, get_args(At))
        if not callable(self.on_contention):
            _require_choice("on_contention", self.on_contention, POLICIES, "or a callable")
        if not callable(self.on_lost):
            _require_choice("on_lost", self.on_lost, get_args(LostMode), "or a callable")
            if self.on_lost != "signal" and runs_under_eventlet():
                raise invalid_argument(
                    f"on_lost={self.on_lost!r} cannot interrupt a task under eventlet: use"
                    " on_lost='signal' or a callable, or another pool"
                )
        if not callable(self.on_unavailable):
            _require_choice(
                "on_unavailable", self.on_unavailable, UNAVAILABLE_POLICIES, "or a callable"
            )
        if self.unavailable_timeout_ms < _MIN_UNAVAILABLE_TIMEOUT_MS:
            raise invalid_argument(_UNAVAILABLE_TIMEOUT_TOO_SHORT)


def is_backend(source: object) -> TypeIs[LockBackend]:
    """Whether it is a backend. A class is not: calling it makes one."""
    return hasattr(source, "acquire") and not isinstance(source, type)


def require_backend(name: str, value: object) -> None:
    if not is_backend(value):
        raise invalid_argument(f"{name} must be a backend, a callable that makes one, or a URL")
    if getattr(value, "is_async", False) or inspect.iscoroutinefunction(value.acquire):
        raise invalid_argument(f"{name} is an asyncio backend; a task needs a blocking backend")


def require_backend_source(name: str, value: object) -> None:
    if is_backend(value) or not (callable(value) or isinstance(value, str)):
        require_backend(name, value)


def _require_ms(name: str, value: object) -> None:
    if type(value) is not int or value <= 0:
        raise invalid_argument(f"{name} must be a whole number of milliseconds, above 0")


def _require_choice(name: str, value: object, choices: tuple[str, ...], more: str = "") -> None:
    if value not in choices:
        raise invalid_argument(f"{name} must be one of {choices} {more}".rstrip())
