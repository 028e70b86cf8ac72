"""The tests that check whether a backend fulfils SyncGuard's contract. For authors of backends.

Subclass ``LockBackendConformance`` in a test module, define a fixture ``make_backend``, and run
pytest. The fixture returns a function that makes a backend::

    from syncguard.testing import LockBackendConformance

    class TestMyBackend(LockBackendConformance):
        @pytest.fixture
        def make_backend(self, my_empty_store):
            def make(**options):
                return MyBackend(my_empty_store, **options)
            return make

- The store must be empty at the start of every test. Within one test, all backends that
  ``make_backend`` makes use the same store.
- The tests of an optional part (``Wakeable``, ``BoundedWaiter``, ``AcquiresUntil``,
  ``OpensExtendChannel``, ``SpreadsLocks``, ``ListsLocks``, ``ReportsHealth``) run if the backend
  has its methods. Otherwise they are skipped, and the reason names the part.
- The only option that the suite passes is ``on_release_error``.
- A fixture ``outage`` that returns a function is optional. After that function is called, the
  store must not answer until the test ends. Without the fixture, the tests of an unreachable store
  are skipped.

The tests are written once, in blocking style. For an asyncio backend, a facade runs its coroutines
in an event loop on a separate thread::

    from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread

    class TestMyAsyncBackend(LockBackendConformance):
        @pytest.fixture
        def make_backend(self, my_empty_store):
            with LoopThread() as loop:
                def make(**options):
                    return BlockingFacade(MyAsyncBackend(my_empty_store, **options), loop)
                yield make

In these tests locks expire after 50 to 100 ms of real time, and the tests poll for the expiry. With
the package hypothesis, a state machine also compares random operations of several owners with a
model.
"""

from __future__ import annotations

from syncguard.testing.conformance.blocking_facade import BlockingFacade, LoopThread
from syncguard.testing.conformance.check_abort import AbortConformance
from syncguard.testing.conformance.check_acquire import AcquireConformance
from syncguard.testing.conformance.check_adopt import AdoptConformance
from syncguard.testing.conformance.check_deadline import DeadlineConformance
from syncguard.testing.conformance.check_extend import ExtendConformance
from syncguard.testing.conformance.check_fence import FenceConformance
from syncguard.testing.conformance.check_force_release import ForceReleaseConformance
from syncguard.testing.conformance.check_health import HealthConformance
from syncguard.testing.conformance.check_heartbeat_channel import ExtendChannelConformance
from syncguard.testing.conformance.check_invalid_arguments import ValidationConformance
from syncguard.testing.conformance.check_key_limits import KeyConformance
from syncguard.testing.conformance.check_live_locks import ListingConformance
from syncguard.testing.conformance.check_lookup import LookupConformance
from syncguard.testing.conformance.check_outage import FailureConformance
from syncguard.testing.conformance.check_random_operations import RandomOperationsConformance
from syncguard.testing.conformance.check_release import ReleaseConformance
from syncguard.testing.conformance.check_release_after_block import DisposalConformance
from syncguard.testing.conformance.check_waiting import WaitingConformance

__all__ = ["BlockingFacade", "LockBackendConformance", "LoopThread"]


class LockBackendConformance(
    AcquireConformance,
    FenceConformance,
    ReleaseConformance,
    ExtendConformance,
    AdoptConformance,
    LookupConformance,
    ListingConformance,
    ForceReleaseConformance,
    KeyConformance,
    ValidationConformance,
    AbortConformance,
    DisposalConformance,
    FailureConformance,
    WaitingConformance,
    DeadlineConformance,
    ExtendChannelConformance,
    HealthConformance,
    RandomOperationsConformance,
):
    """All tests of the contract. Subclass it, and define a fixture ``make_backend``."""
