"""The events of a task's lock, as Celery signals and as log lines.

The sender of every signal is the task (for a plain function, None). The arguments are ``task_id``,
``task_name``, ``key_hash``, ``fence``, ``waited_ms`` and ``held_ms``; what is not known is None.
No raw key and no lock id is sent or logged. The logger is ``syncguard.celery``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    from syncguard_celery.task_call import Call

logger: Final = logging.getLogger("syncguard.celery")

_ARGUMENTS: Final = ["task_id", "task_name", "key_hash", "fence", "waited_ms", "held_ms"]

task_lock_acquired = Signal(name="task_lock_acquired", providing_args=_ARGUMENTS)
task_lock_contended = Signal(name="task_lock_contended", providing_args=[*_ARGUMENTS, "policy"])
task_lock_lost = Signal(name="task_lock_lost", providing_args=_ARGUMENTS)
task_lock_released = Signal(name="task_lock_released", providing_args=_ARGUMENTS)


def listening(signal: Signal, level: int) -> bool:
    """Whether the signal has a receiver or the level is logged."""
    return bool(signal.receivers) or logger.isEnabledFor(level)


def notify(
    signal: Signal,
    level: int,
    text: str,
    call: Call,
    key_hash: Callable[[], str],
    *,
    fence: str | None = None,
    waited_ms: float | None = None,
    held_ms: float | None = None,
    **more: object,
) -> None:
    """Log one line and send the signal. Without a log handler or receiver, hash no key."""
    if not listening(signal, level):
        return
    hashed = key_hash()
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "%s %s (key %s%s%s%s)",
            _subject(call),
            text,
            hashed,
            "" if fence is None else f", fence {fence}",
            _if_known(", waited %d ms", waited_ms),
            _if_known(", held %d ms", held_ms),
        )
    if signal.receivers:
        signal.send(
            sender=call.task,
            task_id=call.task_id,
            task_name=call.name,
            key_hash=hashed,
            fence=fence,
            waited_ms=waited_ms,
            held_ms=held_ms,
            **more,
        )


def _subject(call: Call) -> str:
    if call.task_id is not None:
        return f"Task {call.name}[{call.task_id}]"
    if call.request is None and call.task is not None:  # it is being published
        return f"Task {call.name}"
    return f"Call of {'function' if call.task is None else 'task'} {call.name}"


def _if_known(text: str, ms: float | None) -> str:
    return "" if ms is None else text % round(ms)
