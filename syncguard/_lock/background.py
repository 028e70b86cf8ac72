"""Asyncio tasks that nobody awaits: the event loop itself keeps only weak references to them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_tasks: Final[set[asyncio.Task[Any]]] = set()


def keep(task: asyncio.Task[Any]) -> None:
    """Keep the task until it has ended."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
