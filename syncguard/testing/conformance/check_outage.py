"""When the store is unreachable: operations raise LockError, but leaving a block never does.

These tests need the fixture ``outage``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from syncguard._lock.handles import Acquired
from syncguard.backend import ListsLocks, LockBackend, ReportsHealth, health_of
from syncguard.errors import LockError
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    Outage,
    acquired,
    require_part,
)
from syncguard.types import ReleaseErrorContext

Operation = Callable[[LockBackend, Acquired], object]

OPERATIONS: Final[dict[str, Operation]] = {
    "acquire": lambda b, _held: b.acquire("free", LONG_MS),
    "release": lambda b, held: b.release(held.lock_id),
    "extend": lambda b, held: b.extend(held.lock_id, LONG_MS),
    "adopt": lambda b, held: b.adopt(held.lock_id, LONG_MS),
    "is_locked": lambda b, _held: b.is_locked("held"),
    "lookup by key": lambda b, _held: b.lookup(key="held"),
    "lookup by id": lambda b, held: b.lookup(lock_id=held.lock_id),
}
LISTING: Final[dict[str, Callable[[ListsLocks], object]]] = {
    "live_locks": lambda b: b.live_locks(),
    "count_live_locks": lambda b: b.count_live_locks(),
    "page_raw": lambda b: b.page_raw(),
    "find_raw": lambda b: b.find_raw(lambda _info: True),
    "force_release": lambda b: b.force_release("0" * 24, fence="0" * 15, lock_id_hash="0" * 24),
}


def _assert_fails(name: str, operation: Callable[[], object]) -> None:
    with pytest.raises(LockError) as caught:
        operation()
    assert caught.value.code in ("ServiceUnavailable", "NetworkTimeout"), name
    assert caught.value.context.cause is not None, name


class FailureConformance(ConformanceFixtures):
    """What is raised, and what is not."""

    def test_faults_are_raised_with_code_and_cause_by_every_operation(
        self, backend: LockBackend, outage: Outage
    ) -> None:
        held = acquired(backend, "held")
        outage()
        for name, operation in OPERATIONS.items():
            _assert_fails(name, partial(operation, backend, held))

    def test_faults_are_raised_by_the_listing_too(
        self, listing: ListsLocks, outage: Outage
    ) -> None:
        outage()
        for name, operation in LISTING.items():
            _assert_fails(name, partial(operation, listing))

    def test_faults_are_raised_by_the_health_report_too(
        self, backend: LockBackend, outage: Outage
    ) -> None:
        require_part(backend, ReportsHealth)
        outage()
        _assert_fails("health", health_of(backend).health)

    def test_leaving_a_block_never_raises_and_calls_the_callback(
        self, make_backend: MakeBackend, outage: Outage
    ) -> None:
        reported: list[tuple[LockError, ReleaseErrorContext]] = []
        backend = make_backend(on_release_error=lambda *error: reported.append(error))
        with acquired(backend, "held") as lock:
            outage()
        [(error, context)] = reported
        assert error.code in ("ServiceUnavailable", "NetworkTimeout")
        assert (context.key, context.lock_id, context.source) == ("held", lock.lock_id, "handle")

    def test_leaving_a_block_never_raises_even_if_the_callback_does(
        self, make_backend: MakeBackend, outage: Outage
    ) -> None:
        def complain(*_error: object) -> None:
            raise RuntimeError("the callback is broken too")

        backend = make_backend(on_release_error=complain)
        with acquired(backend, "held"):
            outage()

    def test_the_error_in_the_block_is_the_one_that_is_raised(
        self, make_backend: MakeBackend, outage: Outage
    ) -> None:
        backend = make_backend(on_release_error=lambda *_error: None)

        def work() -> None:
            with acquired(backend, "held"):
                outage()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
