"""No frame in a traceback of any backend holds a raw key, a lock id or a password.

``tests/redis/test_traceback_locals.py`` shows the same for Redis, with Sentry's own client.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from pathlib import Path

import pytest

from syncguard import LockError, aio, generate_lock_id, lock
from syncguard.memory import AsyncMemoryBackend, MemoryBackend
from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend

KEY = "patient:Mallory:diagnosis"
PASSWORD = "hunter2-hunter2"
LOCK_ID = generate_lock_id()
SECRETS = [KEY, "Mallory", LOCK_ID, PASSWORD]
JUDGED = ("syncguard", "psycopg")

ON_A_DEAD_STORE = {
    "acquire": lambda b: b.acquire(KEY, 60_000),
    "release": lambda b: b.release(LOCK_ID),
    "extend": lambda b: b.extend(LOCK_ID, 60_000),
    "adopt": lambda b: b.adopt(LOCK_ID, 60_000),
    "is_locked": lambda b: b.is_locked(KEY),
    "lookup by key": lambda b: b.lookup(key=KEY),
    "lookup by id": lambda b: b.lookup(lock_id=LOCK_ID),
}
WITH_BAD_INPUT = {
    "acquire": lambda b: b.acquire(KEY * 50, 60_000),
    "release": lambda b: b.release(KEY),
    "extend": lambda b: b.extend(KEY, 60_000),
    "adopt": lambda b: b.adopt(KEY, 60_000),
    "is_locked": lambda b: b.is_locked(KEY * 50),
    "lookup": lambda b: b.lookup(key=KEY * 50),
}


def leaks(error):
    """The local variables of frames that are not the test's, with a secret in them."""
    waiting = [traceback.TracebackException.from_exception(error, capture_locals=True)]
    found = []
    while waiting:
        each = waiting.pop()
        for frame in each.stack:
            folders = Path(frame.filename).parts
            if "tests" in folders or not any(package in folders for package in JUDGED):
                continue
            for name, value in (frame.locals or {}).items():
                if any(secret in value for secret in SECRETS):
                    found.append(f"{frame.name}: {name}")
        waiting += [e for e in (each.__cause__, each.__context__) if e is not None]
    return found


def error_of(operation, backend):
    async def awaited():
        async with backend:
            await operation(backend)

    with pytest.raises(LockError) as caught:
        if backend.is_async:
            asyncio.run(awaited())
        else:
            with backend:
                operation(backend)
    return caught.value


@pytest.fixture(params=["sqlite", "postgres"])
def dead_store(request, tmp_path):
    """The blocking and the asyncio backend of a store that cannot be reached."""
    if request.param == "sqlite":
        path = tmp_path / "missing" / "locks.sqlite3"
        yield SQLiteBackend(path), AsyncSQLiteBackend(path)
        return
    postgres = pytest.importorskip("syncguard.postgres")
    with socket.socket() as probe:  # bound, and no process listens
        probe.bind(("127.0.0.1", 0))
        url = f"postgresql://shop:{PASSWORD}@127.0.0.1:{probe.getsockname()[1]}/shop"
        yield postgres.PostgresBackend(url), postgres.AsyncPostgresBackend(url)


@pytest.mark.parametrize("name", ON_A_DEAD_STORE)
def test_a_store_that_cannot_be_reached_shows_no_secret(dead_store, name):
    for backend in dead_store:
        assert leaks(error_of(ON_A_DEAD_STORE[name], backend)) == []


def test_release_many_on_a_store_that_cannot_be_reached_shows_no_secret(dead_store):
    with dead_store[0] as backend:
        (error,) = backend.release_many([LOCK_ID])
    assert isinstance(error, LockError)
    assert leaks(error) == []


def test_lock_on_a_store_that_cannot_be_reached_shows_no_secret(dead_store):
    blocking, asynchronous = dead_store
    assert leaks(error_of(lambda b: lock(b, KEY).__enter__(), blocking)) == []
    assert leaks(error_of(lambda b: aio.lock(b, KEY).__aenter__(), asynchronous)) == []


@pytest.mark.parametrize("name", WITH_BAD_INPUT)
@pytest.mark.parametrize("kind", [MemoryBackend, AsyncMemoryBackend])
def test_bad_input_shows_no_secret(kind, name):
    assert leaks(error_of(WITH_BAD_INPUT[name], kind())) == []
