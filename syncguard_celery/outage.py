"""The lock's server cannot be reached: the task is published again.

Only for the errors of an outage (``UNAVAILABLE``), only in workers, and only while a task acquires
its lock: a task whose body has begun does not run again, except with ``on_lost="retry"``.

When a server does not answer, each attempt blocks a worker's slot until the client times out. So a
process that met an outage tries that server again after ``PAUSE_S`` at the earliest, one attempt at
a time; tasks that arrive meanwhile are published again at once.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from syncguard import LockBackend, LockError, LockInfo, LockLost
from syncguard_celery.holder_label import task_id_in
from syncguard_celery.message_header import header_of, unavailable_since_ms
from syncguard_celery.redelivery import Republished, copy_mark, is_copy
from syncguard_celery.republishing import publish_again
from syncguard_celery.signals import logger
from syncguard_celery.visibility_timeout import below_visibility_timeout

if TYPE_CHECKING:
    from syncguard_celery.options import LockOptions, UnavailablePolicy
    from syncguard_celery.running_calls import Holding
    from syncguard_celery.task_call import Call

R = TypeVar("R")

UNAVAILABLE: Final = frozenset({"ServiceUnavailable", "NetworkTimeout", "RateLimited"})
"""Codes of temporary errors. Wrong credentials or arguments are not temporary."""

PAUSE_S: Final = 1.0
_ATTEMPT_S: Final = 10.0
"""Longer than an attempt should take. A call that waits for its lock must not block others."""
FIRST_DELAY_MS: Final = 1_000.0
MAX_DELAY_MS: Final = 10_000.0
_MAX_UNANSWERED_DELAY_MS: Final = 2_000.0


class Circuit:
    """When this process may try a server again that did not answer."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._error = LockError("ServiceUnavailable")
        self._blocked_until = 0.0

    @property
    def error(self) -> LockError:
        """A copy of the last attempt's error: an error that was raised keeps its frames alive."""
        return copy.copy(self._error)

    def may_try(self) -> bool:
        """Whether this caller may try now. If so, no other caller may until this attempt ends."""
        with self._guard:
            now = time.monotonic()
            if now < self._blocked_until:
                return False
            self._blocked_until = now + _ATTEMPT_S
            return True

    def failed(self, error: LockError) -> None:
        with self._guard:
            self._error = copy.copy(error)
            self._blocked_until = time.monotonic() + PAUSE_S


_circuits: Final[WeakKeyDictionary[LockBackend, Circuit]] = WeakKeyDictionary()
"""Only for servers that did not answer the last attempt. Usually empty."""


def enter_or_republish(
    call: Call,
    options: LockOptions,
    backend: LockBackend,
    enter: Callable[[], R],
    choose_policy: Callable[[], UnavailablePolicy],
) -> R:
    """Call ``enter()``; in an outage, a worker publishes the task again."""
    if not call.in_worker:
        return enter()
    circuit = _circuits.get(backend) if _circuits else None
    if (
        circuit is not None
        and not circuit.may_try()
        and _left_ms(call, options) > 0
        and choose_policy() == "retry"
    ):
        raise _republish(call, options, circuit.error)
    try:
        entered = enter()
    except LockError as error:
        if error.code not in UNAVAILABLE:
            _circuits.pop(backend, None)  # the server answered
            raise
        circuit = _circuits.setdefault(backend, Circuit())
        circuit.failed(error)
        if choose_policy() == "fail" or _left_ms(call, options) <= 0:
            raise
        raise _republish(call, options, circuit.error) from None
    except (Ignore, Retry):  # contention, or a redelivery: the server answered
        _circuits.pop(backend, None)
        raise
    except BaseException:  # for example a time limit during an attempt
        if circuit is not None:
            circuit.failed(circuit.error)
        raise
    if circuit is not None:
        _circuits.pop(backend, None)
    return entered


def is_unanswered_attempt(call: Call, info: LockInfo) -> bool:
    """Whether the holder may be an earlier attempt of this task that got no answer."""
    return (
        call.task_id is not None
        and unavailable_since_ms(call.request) is not None
        and task_id_in(info.holder, call.name) == call.task_id
    )


def republish_after_unanswered(call: Call, options: LockOptions, info: LockInfo) -> Exception:
    """That attempt is undone soon, or expires: publish the task for then.

    Returns the exception to raise."""
    remaining_ms = info.expires_at_ms - time.time() * 1000 + 100
    delay_ms = min(max(remaining_ms, 100.0), _MAX_UNANSWERED_DELAY_MS)
    error = LockError("ServiceUnavailable", "an attempt that got no answer may hold the lock")
    header = {**_kept_header(call), "unavailable": _now_ms(), "tries": 0}
    return _publish(call, error, delay_ms, options.unavailable_timeout_ms, header)


def runs_again_after_loss(holding: Holding, error: Exception) -> bool:
    """Whether a task that raised this error runs again because it lost its lock."""
    call = holding.call
    if holding.options.on_lost != "retry" or not holding.held.lost or not call.in_worker:
        return False
    if isinstance(error, (Ignore, Reject, Retry)):
        return False
    assert call.task is not None
    assert call.request is not None
    limit = call.task.max_retries
    return limit is None or call.request.retries < limit


def republish_after_loss(holding: Holding, error: Exception) -> Exception:
    """Publish the task again, as a retry that counts. Returns the exception to raise.

    It counts, because a task that hangs until ``max_hold_ms`` would otherwise repeat for ever.
    """
    request: Any = holding.call.request
    delay_ms = FIRST_DELAY_MS * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    header = copy_mark(holding.call)
    publish_timeout_ms = holding.options.unavailable_timeout_ms
    return _publish(holding.call, error, delay_ms, publish_timeout_ms, header, request.retries + 1)


def _republish(call: Call, options: LockOptions, error: LockError) -> Exception:
    since_ms = unavailable_since_ms(call.request)
    tries = int(header_of(call.request).get("tries", 0))
    delay_ms = min(FIRST_DELAY_MS * 2.0 ** min(tries, 16), MAX_DELAY_MS)
    delay_ms *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    left_ms = _left_ms(call, options)
    header = {
        **_kept_header(call),
        "unavailable": _now_ms() if since_ms is None else since_ms,
        "tries": tries + 1,
    }
    return _publish(call, error, min(delay_ms, left_ms), left_ms, header)


def _kept_header(call: Call) -> dict[str, object]:
    """The fields of the header that are still true after an outage."""
    received = header_of(call.request)
    names = ("since", "attempts", "place", "earlier", "ended")
    return {**copy_mark(call), **{name: received[name] for name in names if name in received}}


def _publish(
    call: Call,
    error: Exception,
    delay_ms: float,
    publish_timeout_ms: float,
    header: dict[str, object],
    retries: int | None = None,
) -> Exception:
    delay_ms = below_visibility_timeout(call.app, delay_ms)
    try:
        signature = publish_again(
            call, delay_ms, publish_timeout_ms=publish_timeout_ms, header=header, retries=retries
        )
    except OperationalError:
        return error
    reason = error if isinstance(error, LockError) else LockLost()
    text = f"{reason}; retrying in {delay_ms / 1000:.1f} s"
    log = logger.warning if header.get("tries", 1) == 1 else logger.debug
    log("Task %s[%s]: %s", call.name, call.task_id, text)
    if is_copy(call):
        return Republished(text)  # keeps the state that its earlier delivery stored
    again: Any = Retry  # its stub takes a numbers.Real; mypy does not accept a float as one
    retry: Retry = again(text, exc=error, when=delay_ms / 1000, sig=signature)
    return retry


def _left_ms(call: Call, options: LockOptions) -> float:
    since_ms = unavailable_since_ms(call.request)
    if since_ms is None:
        return options.unavailable_timeout_ms
    return options.unavailable_timeout_ms - (time.time() * 1000 - since_ms)


def _now_ms() -> int:
    return round(time.time() * 1000)
