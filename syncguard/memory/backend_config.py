"""What both backends share: the checked options of a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard._embedded.backend_config import Configured
from syncguard._sql.backend_options import FenceFloor
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.errors import invalid_argument
from syncguard.memory.location import read_location, store_of_url
from syncguard.memory.store import Clock, MemoryStore
from syncguard.types import BackendCapabilities, OnReleaseError

if TYPE_CHECKING:
    from typing_extensions import Self


class InMemory(Configured):
    """The settings of a backend on a store in memory."""

    capabilities: ClassVar[BackendCapabilities] = BackendCapabilities(
        backend="memory", supports_fencing=True, time_authority="server"
    )

    def __init__(
        self,
        *,
        store: MemoryStore | None = None,
        clock: Clock | None = None,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(
            key_prefix=key_prefix,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )
        self.store = _chosen_store(store, clock)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
    ) -> Self:
        """A backend on the store of ``memory://name``, which all backends of this name share."""
        return cls(
            store=store_of_url(url),
            key_prefix=key_prefix,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )

    @classmethod
    def read_location(cls, given: GivenLocation) -> Location | SettingProblem:
        return read_location(given)


def _chosen_store(store: MemoryStore | None, clock: Clock | None) -> MemoryStore:
    """The given store, or a new one with the clock."""
    if store is None:
        return MemoryStore(clock)
    if not isinstance(store, MemoryStore):
        raise invalid_argument("store must be a MemoryStore")
    if clock is not None:
        raise invalid_argument("give the clock to MemoryStore: a store has only one")
    return store
