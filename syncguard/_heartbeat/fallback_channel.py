"""A channel for backends without ``open_extend_channel``: calls ``extend`` on its own thread.

The heartbeat must not block, and ``extend`` may. So another thread calls it, and writes to a
socket when answers are ready. The heartbeat watches that socket like any other.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from syncguard._backend.optional import Extension
from syncguard._backend.required import AsyncLockBackend, LockBackend
from syncguard._heartbeat.wake_up import WakeUp
from syncguard.errors import ErrorContext, LockError
from syncguard.types import ExtendResult


class FallbackChannel:
    """Extends by calling the backend on one thread, until the channel is closed."""

    wants_to_write: Final = False

    def __init__(self, backend: LockBackend) -> None:
        self._backend = backend
        self._requests: queue.SimpleQueue[Sequence[Extension] | None] = queue.SimpleQueue()
        self._answers: deque[ExtendResult | LockError] = deque()
        self._wake_up = WakeUp()
        threading.Thread(target=self._run, name="syncguard-extend", daemon=True).start()

    def fileno(self) -> int:
        return self._wake_up.fileno()

    def send(self, extensions: Sequence[Extension]) -> None:
        self._requests.put(extensions)

    def receive(self) -> list[ExtendResult | LockError]:
        self._wake_up.clear()
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def close(self) -> None:
        self._requests.put(None)
        self._wake_up.close()

    def _run(self) -> None:
        while (extensions := self._requests.get()) is not None:
            for lock_id, ttl_ms in extensions:
                self._answers.append(self._extend(lock_id, ttl_ms))
            self._wake_up.send()

    def _extend(self, lock_id: str, ttl_ms: int) -> ExtendResult | LockError:
        try:
            return self._backend.extend(lock_id, ttl_ms)
        except Exception as error:
            return as_lock_error(error)


class AsyncFallbackChannel:
    """Extends by awaiting the backend."""

    def __init__(self, backend: AsyncLockBackend) -> None:
        self._backend = backend

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        return [await self._extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]

    async def _extend(self, lock_id: str, ttl_ms: int) -> ExtendResult | LockError:
        try:
            return await self._backend.extend(lock_id, ttl_ms)
        except Exception as error:
            return as_lock_error(error)

    async def close(self) -> None: ...


def as_lock_error(error: Exception) -> LockError:
    if isinstance(error, LockError):
        return error
    return LockError("Internal", context=ErrorContext(cause=error))
