"""What a test needs to work with real locks: a throw-away Redis, and the suite for backends.

The pytest fixtures are in :mod:`syncguard.testing.plugin`, which pytest finds by itself. Pytest
imports this package in every session of everybody who installed SyncGuard, so nothing here may
import a driver, or anything slow, before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syncguard.testing.redis_server import RedisServer

if TYPE_CHECKING:
    from syncguard.testing.conformance import BlockingFacade, LockBackendConformance, LoopThread

__all__ = ["BlockingFacade", "LockBackendConformance", "LoopThread", "RedisServer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # The suite's own asserts are to explain themselves, like those of any test.
    pytest.register_assert_rewrite("syncguard.testing.conformance")
    from syncguard.testing import conformance

    return getattr(conformance, name)
