"""Publishing a running task again: the same message, with a delay.

Not by ``Task.retry()``: that counts against ``max_retries``, whose default of three is too few for
an outage. The caller gives the fields of our header in the new message.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from kombu.exceptions import OperationalError

from syncguard_celery.fence_propagation import attaching
from syncguard_celery.message_header import put_back, take_lock
from syncguard_celery.signals import logger

if TYPE_CHECKING:
    from celery.canvas import Signature

    from syncguard_celery.task_call import Call

_PAUSE_S: Final = 1.0
"""The delay between two attempts to publish while the broker is down."""


def publish_again(
    call: Call,
    delay_ms: float,
    *,
    publish_timeout_ms: float,
    header: dict[str, object],
    retries: int | None = None,
) -> Signature[Any]:
    """Publish the task of this call again. After ``publish_timeout_ms``, raises the broker's error.

    While the broker is down, this retries in the worker's slot: only this worker has the message.
    A publish-time lock that was not adopted is sent with it.
    """
    task: Any = call.task
    request: Any = call.request
    lock_id = take_lock(request)
    if lock_id is not None:
        header = {**header, "lock": lock_id}
    signature: Signature[Any] = task.signature_from_request(
        request,
        countdown=delay_ms / 1000,
        retries=request.retries if retries is None else retries,
    )
    is_carried = False
    try:
        is_carried = _publish(call, signature, publish_timeout_ms, header)
    finally:
        if lock_id is not None and not is_carried:
            put_back(request, lock_id)  # so that it is released
    return signature


def _publish(
    call: Call, signature: Signature[Any], publish_timeout_ms: float, header: dict[str, object]
) -> bool:
    """Returns whether a message with our header was made."""
    deadline = time.monotonic() + publish_timeout_ms / 1000
    while True:
        try:
            with attaching(str(call.task_id), **header) as attachment:
                signature.apply_async()
            return attachment.is_used
        except OperationalError as error:
            if time.monotonic() + _PAUSE_S > deadline:
                raise
            logger.log(
                logging.WARNING,
                "Could not publish task %s[%s] again (%s); retrying.",
                call.name,
                call.task_id,
                type(error.__cause__ or error).__name__,
            )
        # It may have been published although the answer was lost: then the next message is a
        # second copy, so mark it as one.
        header = {"earlier": {}, **header}
        time.sleep(_PAUSE_S)
