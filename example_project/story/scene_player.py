"""Plays the scenes, one at a time: the journal could not separate the events of two scenes."""

from __future__ import annotations

import threading

from django.db import connection

from example_project.story.models import Scene
from example_project.story.scenes import KINDS

_one_scene = threading.Lock()


def is_playing() -> bool:
    return _one_scene.locked()


def play(kind: str) -> Scene | None:
    """Play a scene to its end. Returns None if another one is being played."""
    if not _one_scene.acquire(blocking=False):
        return None
    try:
        return _play(kind)
    finally:
        _one_scene.release()


def play_in_background(kind: str) -> bool:
    """Play a scene in a thread. Returns False if another one is being played."""
    if not _one_scene.acquire(blocking=False):
        return False

    def run() -> None:
        try:
            _play(kind)
        finally:
            connection.close()
            _one_scene.release()

    threading.Thread(target=run, name=f"scene-{kind}", daemon=True).start()
    return True


def _play(kind: str) -> Scene:
    KINDS[kind].play()
    scene: Scene = Scene.objects.latest("pk")
    return scene
