"""One run of a scene: records its steps, waits for events, and checks the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db.models import QuerySet

from example_project.story.models import Event, Scene, Step, now_ms

T = TypeVar("T")

TIMEOUT_S = 40.0
POLL_S = 0.05

stopping = threading.Event()
"""Set when the demo stops: every wait ends."""


step_listeners: list[Callable[[Step], object]] = []
"""Called with every step when it is recorded."""


class DidNotHappen(Exception):
    """The scene waited for something that did not happen in time."""


class SceneRun:
    """The block in which a scene is played. An error in it is recorded as the last step."""

    def __init__(self, kind: str, key: str) -> None:
        self.key = key
        self.scene = Scene.objects.create(kind=kind, key=key)

    def step(self, text: str) -> None:
        """Record what was done."""
        self._step(text, None)

    def check(self, ok: bool, text: str) -> None:
        """Record a result, and whether it is correct."""
        self._step(text, ok)

    def _step(self, text: str, ok: bool | None) -> None:
        step = Step.objects.create(scene=self.scene, text=text, ok=ok)
        for listener in step_listeners:
            listener(step)

    def events(self, kind: str) -> QuerySet[Event]:
        events: QuerySet[Event] = self.scene.events.filter(kind=kind)
        return events

    def wait_for(self, what: str, condition: Callable[[], T | None]) -> T:
        """Wait until the condition returns a true value, and return that value."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if stopping.wait(POLL_S):
                break
        raise DidNotHappen(f"did not happen in time: {what}")

    def __enter__(self) -> SceneRun:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is not None:
            self.check(False, f"{type(error).__name__}: {error}"[:300])
        self.scene.ok = all(step.ok is not False for step in self.scene.steps.all())
        self.scene.ended_ms = now_ms()
        self.scene.save()
        return isinstance(error, Exception)
