"""Of what the library logs in a worker, only what tells of a mistake in it is judged."""

from __future__ import annotations

import logging
from typing import Final

from history.observer import Observer

_MISTAKES: Final = (
    "A background job failed with %s.",
    "The heartbeat thread was ended by %s.",
    "The on_lost callback failed with %s.",
    "The on_release_error callback failed.",
    "The telemetry callback failed; the lock operation was not affected.",
)
"""What is logged without a traceback, which could show a key."""


def judge_the_log(seen: Observer) -> None:
    """From now on, this process logs nothing, but an error that was caught breaks a rule."""
    root = logging.getLogger()
    root.handlers = [logging.NullHandler()]
    logging.getLogger("syncguard").addHandler(_Judge(seen))


class LoggedMistakeError(Exception):
    """The library logged a mistake of its own, and continued."""


class _Judge(logging.Handler):
    def __init__(self, seen: Observer) -> None:
        super().__init__(logging.ERROR)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        if cause is not None or record.msg in _MISTAKES:
            error = LoggedMistakeError(record.getMessage())
            error.__cause__ = cause
            self._seen.foreign(error)
