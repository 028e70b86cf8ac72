"""For tests with locks: temporary servers, a clock that tests move, the suite for backends.

The pytest fixtures are in :mod:`syncguard.testing.plugin`, which pytest loads automatically. Pytest
imports this package in every session where SyncGuard is installed, so this package imports drivers
and other slow modules only when they are used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

from syncguard.testing.manual_clock import ManualClock
from syncguard.testing.postgres_programs import PostgresUnavailableError
from syncguard.testing.postgres_server import PostgresServer
from syncguard.testing.redis_server import RedisServer

if TYPE_CHECKING:
    from syncguard.testing.conformance import BlockingFacade, LockBackendConformance, LoopThread

__all__ = [
    "BlockingFacade",
    "LockBackendConformance",
    "LoopThread",
    "ManualClock",
    "PostgresServer",
    "PostgresUnavailableError",
    "RedisServer",
]

_SUITE: Final = "syncguard.testing.conformance"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _SUITE not in sys.modules:
        import pytest

        # So that a failed assert of the suite shows its values, as in any test.
        pytest.register_assert_rewrite(_SUITE)
    return getattr(importlib.import_module(_SUITE), name)
