"""From an address to backends that log their releases and extensions.

An address is a URL. ``redis-sentinel://`` and ``redis-cluster://`` are names of this folder; every
other scheme is looked up in SyncGuard's registry, so any backend can be judged. Options of such a
backend may follow a ``#``: ``postgresql://host/database#fence_floor=clock``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from history.log import Log, now, short_id
from syncguard import backends
from syncguard.backend import AsyncLockBackend, LockBackend
from syncguard.redis import AsyncRedisBackend, RedisBackend

MASTER_NAME: Final = "ours"
TIMEOUT_S: Final = 1.0
"""Of clients: a worker that waits longer for a server meets few faults in a short run."""

_TIMEOUTS: Final = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
_OF_REDIS: Final = ("redis", "redis-sentinel", "redis-cluster")


@contextlib.contextmanager
def open_backend(address: str, log: Log) -> Iterator[LockBackend]:
    """A blocking backend at this address, closed together with its client."""
    parts = urlsplit(address)
    if parts.scheme not in _OF_REDIS:
        cls = _recording(backends.backend_class(parts.scheme), log)
        url, options = _split(address)
        with contextlib.closing(cls.from_url(url, **options)) as backend:
            yield backend
        return
    cls, chosen = _recording(RedisBackend, log), _options(parts)
    with contextlib.ExitStack() as opened:
        if parts.scheme == "redis":
            backend = cls.from_url(address, **_TIMEOUTS)
        elif parts.scheme == "redis-cluster":
            backend = cls.from_url(_url_of_cluster(parts), **chosen, **_TIMEOUTS)
        else:
            sentinel = Sentinel([(parts.hostname, parts.port)], sentinel_kwargs=_TIMEOUTS)
            for each in sentinel.sentinels:
                opened.callback(each.close)
            client = sentinel.master_for(MASTER_NAME, **_TIMEOUTS)
            backend = cls(opened.enter_context(client), **chosen)
        yield opened.enter_context(contextlib.closing(backend))


@contextlib.asynccontextmanager
async def open_backend_async(address: str, log: Log) -> AsyncIterator[AsyncLockBackend]:
    """The same for asyncio."""
    parts = urlsplit(address)
    if parts.scheme not in _OF_REDIS:
        cls = _recording_async(backends.async_backend_class(parts.scheme), log)
        url, options = _split(address)
        async with contextlib.aclosing(cls.from_url(url, **options)) as backend:
            yield backend
        return
    cls, chosen = _recording_async(AsyncRedisBackend, log), _options(parts)
    async with contextlib.AsyncExitStack() as opened:
        if parts.scheme == "redis":
            backend = cls.from_url(address, **_TIMEOUTS)
        elif parts.scheme == "redis-cluster":
            backend = cls.from_url(_url_of_cluster(parts), **chosen, **_TIMEOUTS)
        else:
            sentinel = AsyncSentinel([(parts.hostname, parts.port)], sentinel_kwargs=_TIMEOUTS)
            for each in sentinel.sentinels:
                opened.push_async_callback(each.aclose)
            client = sentinel.master_for(MASTER_NAME, **_TIMEOUTS)
            backend = cls(await opened.enter_async_context(client), **chosen)
        yield await opened.enter_async_context(contextlib.aclosing(backend))


def _url_of_cluster(parts: SplitResult) -> str:
    """Its client connects on first use: a worker may begin while a node is down."""
    return f"redis+cluster://{parts.hostname}:{parts.port}"


def _split(address: str) -> tuple[str, dict[str, str]]:
    url, _, options = address.partition("#")
    return url, dict(parse_qsl(options))


def _options(parts: SplitResult) -> dict[str, int]:
    """``min_replicas`` and ``replica_timeout_ms``, from the query of the address."""
    return {name: int(value) for name, value in parse_qsl(parts.query)}


def _recording(cls: Any, log: Log) -> Any:
    """A subclass that logs. A wrapper would hide the optional parts of the backend."""

    class Recording(cls):
        def release(self, lock_id: str, **options: Any) -> Any:
            with _logged("released", lock_id, log) as answers:
                answers.append(super().release(lock_id, **options))
            return answers[0]

        def extend(self, lock_id: str, *args: Any, **options: Any) -> Any:
            with _logged("extended", lock_id, log) as answers:
                answers.append(super().extend(lock_id, *args, **options))
            return answers[0]

    return Recording


def _recording_async(cls: Any, log: Log) -> Any:
    class Recording(cls):
        async def release(self, lock_id: str, **options: Any) -> Any:
            with _logged("released", lock_id, log) as answers:
                answers.append(await super().release(lock_id, **options))
            return answers[0]

        async def extend(self, lock_id: str, *args: Any, **options: Any) -> Any:
            with _logged("extended", lock_id, log) as answers:
                answers.append(await super().extend(lock_id, *args, **options))
            return answers[0]

    return Recording


@contextlib.contextmanager
def _logged(kind: Any, lock_id: str, log: Log) -> Iterator[list[Any]]:
    answers: list[Any] = []
    lock, sent_at = short_id(lock_id), now()
    try:
        yield answers
    except BaseException as error:
        log.write(kind, lock=lock, sent_at=sent_at, ok=None, text=type(error).__name__)
        raise
    answer = answers[0]
    assumed = bool(getattr(answer, "assumed", False))
    log.write(kind, lock=lock, sent_at=sent_at, ok=answer.ok, assumed=assumed)
