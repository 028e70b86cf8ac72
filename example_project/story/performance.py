"""One performance of a scene: tells it step by step, waits for things to happen, and judges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db.models import QuerySet

from example_project.story.models import Event, Scene, Step, now_ms

T = TypeVar("T")

PATIENCE_S = 40.0
POLL_S = 0.05

curtain = threading.Event()
"""Set when everything ends: whoever waits stops waiting."""


audience: list[Callable[[Step], object]] = []
"""Who is told every step as it is taken."""


class NotInTime(Exception):
    """What a scene waited for did not happen."""


class Performance:
    """The block in which a scene is played. What goes wrong there is told as its last step."""

    def __init__(self, kind: str, key: str) -> None:
        self.key = key
        self.scene = Scene.objects.create(kind=kind, key=key)

    def tell(self, text: str) -> None:
        """Say what was done."""
        self._step(text, None)

    def judge(self, ok: bool, text: str) -> None:
        """Say what came of it, and whether it had to be so."""
        self._step(text, ok)

    def _step(self, text: str, ok: bool | None) -> None:
        step = Step.objects.create(scene=self.scene, text=text, ok=ok)
        for told in audience:
            told(step)

    def events(self, kind: str) -> QuerySet[Event]:
        events: QuerySet[Event] = self.scene.events.filter(kind=kind)
        return events

    def wait_for(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait until the condition gives something true, and return that."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if curtain.wait(POLL_S):
                break
        raise NotInTime(f"waited in vain for {what}")

    def __enter__(self) -> Performance:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is not None:
            self.judge(False, f"{type(error).__name__}: {error}"[:300])
        self.scene.ok = all(step.ok is not False for step in self.scene.steps.all())
        self.scene.ended_ms = now_ms()
        self.scene.save()
        return isinstance(error, Exception)
