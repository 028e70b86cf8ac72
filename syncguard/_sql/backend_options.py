"""The options that all SQL backends have, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from syncguard._sql.names import Names
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.errors import invalid_argument
from syncguard.keys import display_hash, validate_holder

FenceFloor = Literal["clock"]


class SqlOptions:
    """How a backend names, labels and shows its locks."""

    def __init__(
        self,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        *,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
        cleanup_in_is_locked: bool = False,
    ) -> None:
        if not isinstance(cleanup_in_is_locked, bool):
            raise invalid_argument("cleanup_in_is_locked must be True or False")
        if fence_floor not in (None, "clock"):
            raise invalid_argument("fence_floor must be None or 'clock'")
        if default_holder is not None and not callable(default_holder):
            raise invalid_argument("default_holder must be a function that returns a label")
        self.names: Final = Names(key_prefix)
        self.hash: Final = display_hash(hash_secret)
        self.fence_floor: Final = fence_floor
        self.cleanup_in_is_locked: Final = cleanup_in_is_locked
        self._default_holder = default_holder

    def holder_of(self, holder: str | None) -> str | None:
        """The label of a holder: the given one, or the default. Raises InvalidArgument."""
        if holder is None and self._default_holder is not None:
            holder = self._default_holder()
        return validate_holder(holder)
