"""The suite that holds a backend to SyncGuard's contract. For the authors of backends.

Subclass ``LockBackendConformance`` in a test module, give it a fixture ``make_backend``, and run
pytest. The fixture returns a function that makes a backend::

    from syncguard.testing import LockBackendConformance

    class TestMyBackend(LockBackendConformance):
        @pytest.fixture
        def make_backend(self, my_empty_store):
            def make(**options):
                return MyBackend(my_empty_store, **options)
            return make

- Every test must find the store empty. Within one test, all backends that ``make_backend`` makes
  share it.
- The tests of an optional part (``Wakeable``, ``OpensExtendChannel``, ``ListsLocks``,
  ``ReportsHealth``) run if the backend has its methods, and are skipped by its name if not.
- The one option that the suite passes is ``on_release_error``.
- A fixture ``outage`` that returns a function is optional. After that function was called, the
  store must answer nothing any more until the test ends. Without it, the tests of what happens
  when the store is gone are skipped.

The tests are written once, in blocking style. An asyncio backend runs them too, behind a facade
that runs its coroutines in an event loop on a thread of its own::

    from syncguard.testing import BlockingFacade, LockBackendConformance, LoopThread

    class TestMyAsyncBackend(LockBackendConformance):
        @pytest.fixture
        def make_backend(self, my_empty_store):
            with LoopThread() as loop:
                def make(**options):
                    return BlockingFacade(MyAsyncBackend(my_empty_store, **options), loop)
                yield make

Locks expire here after 50 to 100 ms of real time, and the tests poll until they have.
"""

from __future__ import annotations

from syncguard.testing.conformance.aborting import AbortConformance
from syncguard.testing.conformance.acquiring import AcquireConformance
from syncguard.testing.conformance.adopting import AdoptConformance
from syncguard.testing.conformance.disposing import DisposalConformance
from syncguard.testing.conformance.extending import ExtendConformance
from syncguard.testing.conformance.facade import BlockingFacade, LoopThread
from syncguard.testing.conformance.failing import FailureConformance
from syncguard.testing.conformance.fencing import FenceConformance
from syncguard.testing.conformance.forcing import ForceReleaseConformance
from syncguard.testing.conformance.heartbeats import ExtendChannelConformance
from syncguard.testing.conformance.listing import ListingConformance
from syncguard.testing.conformance.looking import LookupConformance
from syncguard.testing.conformance.naming import KeyConformance
from syncguard.testing.conformance.releasing import ReleaseConformance
from syncguard.testing.conformance.reporting import HealthConformance
from syncguard.testing.conformance.validating import ValidationConformance
from syncguard.testing.conformance.waking import WaitingConformance

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
    ExtendChannelConformance,
    HealthConformance,
):
    """All of the contract. Subclass it, and give it a fixture ``make_backend``."""
