"""Plays the scenes, one at a time: two at once could not be told apart in the journal."""

from __future__ import annotations

import threading

from django.db import connection

from example_project.story.models import Scene
from example_project.story.scenes import KINDS

_on_stage = threading.Lock()


def is_playing() -> bool:
    return _on_stage.locked()


def play(kind: str) -> Scene | None:
    """Play a scene to its end. None: another one is being played."""
    if not _on_stage.acquire(blocking=False):
        return None
    try:
        return _perform(kind)
    finally:
        _on_stage.release()


def play_in_background(kind: str) -> bool:
    """Begin a scene, and let it go on in a thread. False: another one is being played."""
    if not _on_stage.acquire(blocking=False):
        return False

    def perform() -> None:
        try:
            _perform(kind)
        finally:
            connection.close()
            _on_stage.release()

    threading.Thread(target=perform, name=f"scene-{kind}", daemon=True).start()
    return True


def _perform(kind: str) -> Scene:
    KINDS[kind].play()
    scene: Scene = Scene.objects.latest("pk")
    return scene
