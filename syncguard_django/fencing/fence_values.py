"""A fence as a value: its format, the lowest one, and the error for a fence that is too low."""

from __future__ import annotations

from typing import Final

from syncguard import FENCE_MAX, LockError, format_fence
from syncguard_django.models import FENCE_DIGITS

NO_FENCE: Final = format_fence(0)
"""The fence of a row that no holder has written yet."""


class StaleFence(Exception):
    """A later holder has the lock, or has written. Nothing was changed; stop this work."""

    def __init__(self, fence: str, seen: str | None = None) -> None:
        super().__init__(fence, seen)
        self.fence = fence
        self.seen = seen
        """The fence of the later holder, if it is known."""

    def __str__(self) -> str:
        if self.seen is None:
            return (
                f"fence {self.fence} is stale: its lock was lost or released, and another holder"
                " may have it now. Stop, and do not write."
            )
        return (
            f"fence {self.fence} is stale: a holder with fence {self.seen} has written since."
            " Another holder has your lock now: stop, and do not write."
            " If every new holder is refused, the lock server has lost its fence counters: run"
            " manage.py syncguard_guard --forget KEY once for each key, call forget_fences() for"
            " the rows of a FencedModel, and set FENCE_FLOOR to 'clock' so that it cannot happen"
            " again."
        )


def checked_fence(fence: str) -> str:
    """The fence, or ``LockError("InvalidArgument")``."""
    if not isinstance(fence, str) or len(fence) != FENCE_DIGITS or not fence.isdecimal():
        raise LockError("InvalidArgument", f"a fence is a str of {FENCE_DIGITS} digits")
    if fence > FENCE_MAX:
        raise LockError("InvalidArgument", f"a fence is at most {FENCE_MAX}")
    return fence
