"""What every part of the suite stands on: its fixtures, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

import pytest

from syncguard.backend import Acquired, ListsLocks, LockBackend, listing_of, offers

T = TypeVar("T")

LONG_MS: Final = 60_000
"""A TTL that no test outlives."""

SHORT_MS: Final = 60
"""A TTL that is waited for."""

_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.005


class MakeBackend(Protocol):
    """Makes a backend; all that one test makes share a store."""

    def __call__(self, **options: object) -> LockBackend: ...


Outage = Callable[[], None]
"""From this call to the end of the test, the store answers nothing."""


class ConformanceFixtures:
    """The fixtures. A subclass gives ``make_backend`` and may give ``outage``."""

    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        raise NotImplementedError(
            "the conformance suite needs a fixture make_backend: see syncguard.testing.conformance"
        )

    @pytest.fixture
    def backend(self, make_backend: MakeBackend) -> LockBackend:
        return make_backend()

    @pytest.fixture
    def listing(self, backend: LockBackend) -> ListsLocks:
        """The same backend, which has to list its locks."""
        require_part(backend, ListsLocks)
        return listing_of(backend)

    @pytest.fixture
    def outage(self) -> Outage:
        pytest.skip("this backend's tests have no fixture outage")


def require_part(backend: LockBackend, part: type) -> None:
    """Skip the test, by the name of the part, if the backend does not have it."""
    if not offers(backend, part):
        pytest.skip(f"this backend does not offer {part.__name__}")


def acquired(backend: LockBackend, key: str, ttl_ms: int = LONG_MS) -> Acquired:
    """A lock that must be free."""
    result = backend.acquire(key, ttl_ms)
    assert result.ok, "the lock should have been free"
    return result


def expired(backend: LockBackend, key: str) -> Acquired:
    """A lock that was acquired and ran out."""
    lock = acquired(backend, key, SHORT_MS)
    eventually(lambda: not backend.is_locked(key))
    return lock


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for the condition; fail if it does not come true."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(_POLL_S)


def at_once(action: Callable[[], T], times: int = 8) -> list[T]:
    """Run the action on several threads at the same time."""
    with ThreadPoolExecutor(times) as threads:
        return [future.result() for future in [threads.submit(action) for _ in range(times)]]
