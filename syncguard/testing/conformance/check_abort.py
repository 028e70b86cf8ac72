"""Signals: an operation whose signal is set does nothing, and raises ``Aborted``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import pytest

from syncguard._lock.handles import Acquired
from syncguard.backend import LockBackend
from syncguard.errors import LockError
from syncguard.testing.conformance.fixtures import LONG_MS, ConformanceFixtures, acquired
from syncguard.types import Signal

Operation = Callable[[LockBackend, Acquired, Signal], object]

OPERATIONS: Final[dict[str, Operation]] = {
    "acquire": lambda b, _held, signal: b.acquire("free", LONG_MS, signal=signal),
    "release": lambda b, held, signal: b.release(held.lock_id, signal=signal),
    "extend": lambda b, held, signal: b.extend(held.lock_id, 1, signal=signal),
    "adopt": lambda b, held, signal: b.adopt(held.lock_id, LONG_MS, signal=signal),
    "is_locked": lambda b, _held, signal: b.is_locked("held", signal=signal),
    "lookup by key": lambda b, _held, signal: b.lookup(key="held", signal=signal),
    "lookup by id": lambda b, held, signal: b.lookup(lock_id=held.lock_id, signal=signal),
    "the handle's release": lambda _b, held, signal: held.release(signal=signal),
    "the handle's extend": lambda _b, held, signal: held.extend(1, signal=signal),
}


class AbortConformance(ConformanceFixtures):
    """What signals do."""

    @pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
    def test_a_set_signal_aborts_and_nothing_happens(
        self, backend: LockBackend, operation: Operation
    ) -> None:
        held = acquired(backend, "held")
        before = [backend.lookup(key=key) for key in ("held", "free")]
        signal = threading.Event()
        signal.set()
        with pytest.raises(LockError) as caught:
            operation(backend, held, signal)
        assert caught.value.code == "Aborted"
        assert [backend.lookup(key=key) for key in ("held", "free")] == before

    @pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
    def test_a_signal_that_is_not_set_lets_the_operation_through(
        self, backend: LockBackend, operation: Operation
    ) -> None:
        assert operation(backend, acquired(backend, "held"), threading.Event())
