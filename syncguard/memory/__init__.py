"""Locks in the memory of one process: for unit tests. Needs no server and no other package."""

from __future__ import annotations

from syncguard.memory.memory_backend import MemoryBackend
from syncguard.memory.memory_backend_async import AsyncMemoryBackend
from syncguard.memory.store import Clock, MemoryStore

__all__ = ["AsyncMemoryBackend", "Clock", "MemoryBackend", "MemoryStore"]
