"""What a scene may do to the servers. Only the demo that started them can do it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass
class Controls:
    """Set by the demo, for the servers that it started."""

    kill: Callable[[int], None] | None = None
    """kill -9 for one process of the demo's own worker, by its id."""

    pause: Callable[[], AbstractContextManager[None]] | None = None
    """Pause the store of the locks for the length of a block."""


controls = Controls()
