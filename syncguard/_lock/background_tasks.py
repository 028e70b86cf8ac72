"""Asyncio tasks that no code awaits: the event loop keeps only weak references to them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_tasks: Final[set[asyncio.Task[Any]]] = set()


def keep(task: asyncio.Task[Any]) -> None:
    """Keep a reference to the task until it has ended."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
