"""What a test needs to work with real locks: a throw-away Redis.

The pytest fixtures are in :mod:`syncguard.testing.plugin`, which pytest finds by itself. Pytest
imports this package in every session of everybody who installed SyncGuard, so nothing here may
import a driver, or anything slow, before it is asked for.
"""

from __future__ import annotations

from syncguard.testing.server import RedisServer

__all__ = ["RedisServer"]
