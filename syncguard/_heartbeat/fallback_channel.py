"""A channel where the backend opens none, or cannot now: calls ``extend`` on its own thread.

The heartbeat must not block, and ``extend`` may. So another thread calls it, and writes to a
socket when answers are ready. The heartbeat watches that socket like any other. A backend that
extends many locks in one request, on any thread, can use ``BatchChannel`` as its own channel.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from syncguard._backend.optional import Extension
from syncguard._backend.required import AsyncLockBackend
from syncguard._heartbeat.wake_up import WakeUp
from syncguard.errors import ErrorContext, LockError
from syncguard.types import ExtendResult


class Extends(Protocol):
    """The part of a blocking backend that a channel needs."""

    def extend(self, lock_id: str, ttl_ms: int = ..., /) -> ExtendResult: ...


class FallbackChannel:
    """Extends by calling the backend on one thread, until the channel is closed."""

    wants_to_write: Final = False

    def __init__(self, backend: Extends) -> None:
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
            self._answers.extend(self._extend_all(extensions))
            self._wake_up.send()

    def _extend_all(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        return [self._extend(lock_id, ttl_ms) for lock_id, ttl_ms in extensions]

    def _extend(self, lock_id: str, ttl_ms: int) -> ExtendResult | LockError:
        try:
            return self._backend.extend(lock_id, ttl_ms)
        except Exception as error:
            return as_lock_error(error)


class OneRequestChannel(FallbackChannel):
    """For a server that accepts no more connections: the backend may have one open.

    The heartbeat closes it after one request, and tries to open a connection of its own again.
    """


class ExtendsMany(Extends, Protocol):
    """A backend that extends many locks in one request, and returns errors instead of raising."""

    def extend_many(self, extensions: Sequence[Extension], /) -> list[ExtendResult | LockError]: ...


class BatchChannel(FallbackChannel):
    """The same, with one request for all locks that are due."""

    def __init__(self, backend: ExtendsMany) -> None:
        self._extend_many = backend.extend_many
        super().__init__(backend)

    def _extend_all(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        try:
            return self._extend_many(extensions)
        except Exception as error:
            return [as_lock_error(error)] * len(extensions)


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


class AsyncOneRequestChannel(AsyncFallbackChannel):
    """The same as ``OneRequestChannel`` for asyncio."""


class AsyncExtendsMany(Protocol):
    """The same as ``ExtendsMany`` for asyncio."""

    async def extend_many(
        self, extensions: Sequence[Extension], /
    ) -> list[ExtendResult | LockError]: ...


class AsyncBatchChannel:
    """Extends by awaiting the backend, with one request for all locks that are due."""

    def __init__(self, backend: AsyncExtendsMany) -> None:
        self._backend = backend

    async def extend(self, extensions: Sequence[Extension]) -> list[ExtendResult | LockError]:
        return await self._backend.extend_many(extensions)

    async def close(self) -> None: ...


def as_lock_error(error: Exception) -> LockError:
    if isinstance(error, LockError):
        return error
    return LockError("Internal", context=ErrorContext(cause=error))
