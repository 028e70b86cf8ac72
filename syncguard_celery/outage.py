"""The lock's server cannot be reached: the task comes back, by a message of its own.

Only for what an outage raises (``UNAVAILABLE``), only in workers, and only on the way to the
lock: a task whose body has begun is not begun again, unless ``on_lost="retry"`` says so.

A server that does not answer costs each attempt the client's time-out, in a worker's slot. So a
process that met an outage asks that server again after ``PAUSE_S`` at the earliest, one attempt at
a time; tasks that come meanwhile are published again at once.
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
from syncguard_celery.redelivery import ComesBack, copy_mark, is_copy
from syncguard_celery.republishing import below_visibility_timeout, publish_again
from syncguard_celery.signals import logger

if TYPE_CHECKING:
    from syncguard_celery.locked_calls import Holding
    from syncguard_celery.options import LockOptions, UnavailablePolicy
    from syncguard_celery.task_call import Call

R = TypeVar("R")

UNAVAILABLE: Final = frozenset({"ServiceUnavailable", "NetworkTimeout", "RateLimited"})
"""Codes of errors that pass by themselves. Wrong credentials or arguments do not."""

PAUSE_S: Final = 1.0
_ASKING_S: Final = 10.0
"""Longer than an attempt should take. One that waits for its lock must not stop the others."""
FIRST_DELAY_MS: Final = 1_000.0
LAST_DELAY_MS: Final = 10_000.0
_DOUBTFUL_MS: Final = 2_000.0


class Circuit:
    """When this process may ask a server that did not answer."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._error = LockError("ServiceUnavailable")
        self._closed_until = 0.0

    @property
    def error(self) -> LockError:
        """What the last attempt met, anew: one that was raised keeps its frames alive."""
        return copy.copy(self._error)

    def may_ask(self) -> bool:
        """Whether this caller may ask now. If so, nobody else may until it says how it went."""
        with self._guard:
            now = time.monotonic()
            if now < self._closed_until:
                return False
            self._closed_until = now + _ASKING_S
            return True

    def failed(self, error: LockError) -> None:
        with self._guard:
            self._error = copy.copy(error)
            self._closed_until = time.monotonic() + PAUSE_S


_open: Final[WeakKeyDictionary[LockBackend, Circuit]] = WeakKeyDictionary()
"""Of the servers that did not answer last time. Usually empty."""


def through_outages(
    call: Call,
    options: LockOptions,
    backend: LockBackend,
    enter: Callable[[], R],
    choose: Callable[[], UnavailablePolicy],
) -> R:
    """``enter()``; in a worker, an outage becomes another delivery of the task."""
    if not call.in_worker:
        return enter()
    circuit = _open.get(backend) if _open else None
    if (
        circuit is not None
        and not circuit.may_ask()
        and _left_ms(call, options) > 0
        and choose() == "retry"
    ):
        raise _come_back(call, options, circuit.error)
    try:
        entered = enter()
    except LockError as error:
        if error.code not in UNAVAILABLE:
            _open.pop(backend, None)  # it answered
            raise
        circuit = _open.setdefault(backend, Circuit())
        circuit.failed(error)
        if choose() == "fail" or _left_ms(call, options) <= 0:
            raise
        raise _come_back(call, options, circuit.error) from None
    except (Ignore, Retry):  # contention, or another delivery of this task: it answered
        _open.pop(backend, None)
        raise
    except BaseException:  # a time limit, perhaps in the middle of an attempt
        if circuit is not None:
            circuit.failed(circuit.error)
        raise
    if circuit is not None:
        _open.pop(backend, None)
    return entered


def is_doubtful_attempt(call: Call, info: LockInfo) -> bool:
    """Whether the holder may be an attempt of this very task that got no answer."""
    return (
        call.task_id is not None
        and unavailable_since_ms(call.request) is not None
        and task_id_in(info.holder, call.name) == call.task_id
    )


def outlast_doubtful_attempt(call: Call, options: LockOptions, info: LockInfo) -> Exception:
    """It is undone soon, or expires: come back then. The exception to raise."""
    remaining_ms = info.expires_at_ms - time.time() * 1000 + 100
    delay_ms = min(max(remaining_ms, 100.0), _DOUBTFUL_MS)
    error = LockError("ServiceUnavailable", "an attempt that got no answer may hold the lock")
    header = {**_kept(call), "unavailable": _now_ms(), "tries": 0}
    return _publish(call, error, delay_ms, options.unavailable_timeout_ms, header)


def is_delivered_after_loss(holding: Holding, error: Exception) -> bool:
    """Whether a task that ended in this error is to run again because it lost its lock."""
    call = holding.call
    if holding.options.on_lost != "retry" or not holding.held.lost or not call.in_worker:
        return False
    if isinstance(error, (Ignore, Reject, Retry)):
        return False
    assert call.task is not None
    assert call.request is not None
    limit = call.task.max_retries
    return limit is None or call.request.retries < limit


def deliver_after_loss(holding: Holding, error: Exception) -> Exception:
    """Publish it again, as a retry of its own that counts. The exception to raise.

    It counts because a task that hangs until ``max_hold_ms`` would hang again, without end.
    """
    request: Any = holding.call.request
    delay_ms = FIRST_DELAY_MS * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    header = copy_mark(holding.call)
    patience_ms = holding.options.unavailable_timeout_ms
    return _publish(holding.call, error, delay_ms, patience_ms, header, request.retries + 1)


def _come_back(call: Call, options: LockOptions, error: LockError) -> Exception:
    since_ms = unavailable_since_ms(call.request)
    tries = int(header_of(call.request).get("tries", 0))
    delay_ms = min(FIRST_DELAY_MS * 2.0 ** min(tries, 16), LAST_DELAY_MS)
    delay_ms *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    left_ms = _left_ms(call, options)
    header = {
        **_kept(call),
        "unavailable": _now_ms() if since_ms is None else since_ms,
        "tries": tries + 1,
    }
    return _publish(call, error, min(delay_ms, left_ms), left_ms, header)


def _kept(call: Call) -> dict[str, object]:
    """What the message said before the outage, and still holds: we could not look."""
    came_with = header_of(call.request)
    names = ("since", "attempts", "place", "earlier", "ended")
    return {**copy_mark(call), **{name: came_with[name] for name in names if name in came_with}}


def _publish(
    call: Call,
    error: Exception,
    delay_ms: float,
    patience_ms: float,
    header: dict[str, object],
    retries: int | None = None,
) -> Exception:
    delay_ms = below_visibility_timeout(call.app, delay_ms)
    try:
        signature = publish_again(
            call, delay_ms, patience_ms=patience_ms, header=header, retries=retries
        )
    except OperationalError:
        return error
    reason = error if isinstance(error, LockError) else LockLost()
    text = f"{reason}; trying again in {delay_ms / 1000:.1f} s"
    log = logger.warning if header.get("tries", 1) == 1 else logger.debug
    log("Task %s[%s]: %s", call.name, call.task_id, text)
    if is_copy(call):
        return ComesBack(text)  # what its earlier delivery stored is not overwritten
    again: Any = Retry  # its stub takes a numbers.Real, which no float is to mypy
    retry: Retry = again(text, exc=error, when=delay_ms / 1000, sig=signature)
    return retry


def _left_ms(call: Call, options: LockOptions) -> float:
    since_ms = unavailable_since_ms(call.request)
    if since_ms is None:
        return options.unavailable_timeout_ms
    return options.unavailable_timeout_ms - (time.time() * 1000 - since_ms)


def _now_ms() -> int:
    return round(time.time() * 1000)
