"""The settings that the blocking and the asyncio backend share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from syncguard._backend.backend_base import BackendConfig
from syncguard._embedded.operations import Operations
from syncguard._sql.backend_options import FenceFloor, SqlOptions
from syncguard.types import BackendCapabilities, OnReleaseError


class Configured(BackendConfig):
    """The checked settings of a backend, and its operations."""

    capabilities: ClassVar[BackendCapabilities]

    def __init__(
        self,
        *,
        key_prefix: str,
        on_release_error: OnReleaseError | None,
        dispose_timeout_ms: int | None,
        hash_secret: str | bytes | None,
        fence_floor: FenceFloor | None,
        default_holder: Callable[[], str] | None,
    ) -> None:
        self._options = SqlOptions(
            key_prefix,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
        )
        self._operations = Operations(self._options)
        super().__init__(
            self._options.names.prefix, self._options.hash, on_release_error, dispose_timeout_ms
        )
