"""The fixtures and helpers that all parts of the suite use."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

import pytest

from syncguard.backend import Acquired, ListsLocks, LockBackend, listing_of, offers

T = TypeVar("T")

LONG_MS: Final = 60_000
"""A TTL that does not end during a test."""

SHORT_MS: Final = 60
"""A TTL whose end a test waits for."""

_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.005


class MakeBackend(Protocol):
    """Makes a backend. All backends of one test use the same store."""

    def __call__(self, **options: object) -> LockBackend: ...


Outage = Callable[[], None]
"""After this call, the store does not answer until the test ends."""


class ConformanceFixtures:
    """The fixtures. A subclass must define ``make_backend`` and may define ``outage``."""

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
        """The same backend as ``ListsLocks``; skips the test if it cannot list its locks."""
        require_part(backend, ListsLocks)
        return listing_of(backend)

    @pytest.fixture
    def outage(self) -> Outage:
        pytest.skip("the tests of this backend define no fixture outage")


def require_part(backend: LockBackend, part: type) -> None:
    """Skip the test if the backend does not offer the part. The reason names the part."""
    if not offers(backend, part):
        pytest.skip(f"this backend does not offer {part.__name__}")


def acquired(backend: LockBackend, key: str, ttl_ms: int = LONG_MS) -> Acquired:
    """Acquire a lock that must be free."""
    result = backend.acquire(key, ttl_ms)
    assert result.ok, "the lock should have been free"
    return result


def expired(backend: LockBackend, key: str, ttl_ms: int = SHORT_MS) -> Acquired:
    """Acquire a lock and wait until it has expired, which takes at least the TTL."""
    while not (lock := backend.acquire(key, ttl_ms)).ok:
        # On a busy machine the answer may come after the TTL, and then it is no grant.
        eventually(lambda: not backend.is_locked(key))
        ttl_ms *= 2
    eventually(lambda: not backend.is_locked(key))
    return lock


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; fail after a time limit."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(_POLL_S)


def at_once(action: Callable[[], T], times: int = 8) -> list[T]:
    """Run the action on several threads at the same time."""
    with ThreadPoolExecutor(times) as threads:
        return [future.result() for future in [threads.submit(action) for _ in range(times)]]
