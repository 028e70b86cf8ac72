"""What a scene may do to the servers. Only who started them can: by default, nobody can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass
class Controls:
    """Filled in by the demo, for what it started itself."""

    kill: Callable[[int], None] | None = None
    """kill -9 for one process of the demo's own worker, by its id."""

    pause_redis: Callable[[], AbstractContextManager[None]] | None = None
    """Stop the embedded Redis of the locks for the length of a block."""


controls = Controls()
