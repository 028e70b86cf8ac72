"""What both backends share: the checked options of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from syncguard._backend.deadline import Deadline
from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard._embedded.backend_config import Configured
from syncguard._sql.backend_options import FenceFloor
from syncguard._sql.table_names import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE
from syncguard.clock import monotonic_ms
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.errors import invalid_argument
from syncguard.keys import validate_ttl_ms
from syncguard.sqlite.location import checked_path, path_of_url, read_location
from syncguard.sqlite.lock_file import LockFile, Synchronous
from syncguard.sqlite.schema import Tables
from syncguard.types import BackendCapabilities, OnReleaseError, Signal

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_TIMEOUT_MS: Final = 5_000


class OnFile(Configured):
    """The settings of a backend on a file."""

    capabilities: ClassVar[BackendCapabilities] = BackendCapabilities(
        backend="sqlite", supports_fencing=True, time_authority="server"
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        synchronous: Synchronous = "normal",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        locks_table: str = DEFAULT_LOCKS_TABLE,
        fences_table: str = DEFAULT_FENCES_TABLE,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = "clock",
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
        if synchronous not in get_args(Synchronous):
            raise invalid_argument(f"synchronous must be one of {get_args(Synchronous)}")
        self._timeout_ms = validate_ttl_ms(timeout_ms, "timeout_ms")
        self._file = LockFile(checked_path(path), Tables(locks_table, fences_table), synchronous)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        synchronous: Synchronous = "normal",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        locks_table: str = DEFAULT_LOCKS_TABLE,
        fences_table: str = DEFAULT_FENCES_TABLE,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = "clock",
        default_holder: Callable[[], str] | None = None,
    ) -> Self:
        """A backend on the file of a URL: ``sqlite:///relative`` or ``sqlite:////absolute``."""
        return cls(
            path_of_url(url),
            key_prefix=key_prefix,
            synchronous=synchronous,
            timeout_ms=timeout_ms,
            locks_table=locks_table,
            fences_table=fences_table,
            on_release_error=on_release_error,
            dispose_timeout_ms=dispose_timeout_ms,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )

    @classmethod
    def read_location(cls, given: GivenLocation) -> Location | SettingProblem:
        """Read and check the settings of a project: a path or a URL."""
        return read_location(given)

    def _deadline(self, signal: Signal | None, given: Deadline | None) -> Deadline:
        """Until when an operation may wait for a busy file."""
        at_ms = monotonic_ms() + self._timeout_ms
        if given is None:
            return Deadline(at_ms, signal)
        return Deadline(min(at_ms, given.at_ms), given.signal)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._file.path!r}, key_prefix={self.key_prefix!r})"
