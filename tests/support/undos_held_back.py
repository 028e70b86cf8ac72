"""Lets undos wait, for tests whose result must not depend on them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from syncguard.redis.undo_thread import undo_thread


@contextlib.contextmanager
def undos_held_back() -> Iterator[threading.Event]:
    """No undo is tried during the block, until the event is set. What is left then is dropped."""
    may_run, try_due = threading.Event(), undo_thread._try_due

    def try_later() -> None:
        may_run.wait()
        try_due()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo_thread, "_try_due", try_later)
        try:
            yield may_run
        finally:
            undo_thread.drop_jobs()
            may_run.set()
