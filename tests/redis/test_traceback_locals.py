"""No frame of SyncGuard in a traceback holds a raw key, a lock id, a command or a password.

Judged with ``traceback`` and its local variables, and with what Sentry's own client sends. Frames
of the test hold the test's own variables: those are not judged.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import traceback
from pathlib import Path
from types import FunctionType

import pytest
import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import syncguard
from syncguard import LockError, aio, generate_lock_id, lock, with_telemetry
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.traceback_locals import clear_locals, hides_arguments

KEY = "patient:Mallory:diagnosis"
PASSWORD = "hunter2-hunter2"
LOCK_ID = generate_lock_id()
SECRETS = [KEY, "Mallory", LOCK_ID, PASSWORD]
JUDGED = ("syncguard", "redis")


@pytest.fixture
def dead_url():
    """The address of a port that is bound, where no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"redis://:{PASSWORD}@127.0.0.1:{probe.getsockname()[1]}/0"


def shown_by_traceback(error):
    """What ``traceback`` shows of our frames, with their local variables."""
    found = []
    walked = traceback.TracebackException.from_exception(error, capture_locals=True)
    waiting = [walked]
    while waiting:
        each = waiting.pop()
        for frame in each.stack:
            folders = Path(frame.filename).parts
            if "tests" not in folders and any(package in folders for package in JUDGED):
                found += [f"{frame.name}: {n} = {v}" for n, v in (frame.locals or {}).items()]
        waiting += [e for e in (each.__cause__, each.__context__) if e is not None]
    return found


def shown_by_sentry(error):
    """What Sentry sends of our frames."""
    sentry_sdk = pytest.importorskip("sentry_sdk")
    sent = []
    client = sentry_sdk.Client(
        dsn="http://public@127.0.0.1:1/1",
        before_send=lambda event, _hint: sent.append(event),
        default_integrations=False,
        include_local_variables=True,
    )
    with sentry_sdk.new_scope() as scope:
        scope.set_client(client)
        scope.capture_exception(error)
    client.close(timeout=0)
    (event,) = sent
    return [
        f"{frame['function']}: {frame.get('vars')}"
        for value in event["exception"]["values"]
        for frame in value["stacktrace"]["frames"]
        if frame["module"].partition(".")[0] in JUDGED
    ]


def assert_hidden(error):
    for shown in (shown_by_traceback(error), shown_by_sentry(error)):
        leaks = [line for line in shown if any(secret in line for secret in SECRETS)]
        assert leaks == []


def enter(block):
    with block:
        pytest.fail("entered")


OPERATIONS = {
    "acquire": lambda b: b.acquire(KEY, 60_000),
    "release": lambda b: b.release(LOCK_ID),
    "release_many": lambda b: b.release_many([LOCK_ID])[0],
    "extend": lambda b: b.extend(LOCK_ID, 60_000),
    "adopt": lambda b: b.adopt(LOCK_ID, 60_000),
    "is_locked": lambda b: b.is_locked(KEY),
    "lookup by key": lambda b: b.lookup(key=KEY),
    "lookup by id": lambda b: b.lookup(lock_id=LOCK_ID),
    "get_by_key": lambda b: syncguard.get_by_key(b, KEY),
    "owns": lambda b: syncguard.owns(b, LOCK_ID),
    "lock": lambda b: enter(lock(b, KEY)),
    "backend.lock": lambda b: enter(b.lock(KEY)),
    "too long": lambda b: b.acquire(KEY * 50),
    "a wrong lock id": lambda b: b.release(KEY),
    "a wrong key for lock": lambda b: b.lock(KEY * 50),
}
ASYNC_OPERATIONS = {
    "acquire": lambda b: b.acquire(KEY, 60_000),
    "release": lambda b: b.release(LOCK_ID),
    "extend": lambda b: b.extend(LOCK_ID, 60_000),
    "adopt": lambda b: b.adopt(LOCK_ID, 60_000),
    "is_locked": lambda b: b.is_locked(KEY),
    "lookup by key": lambda b: b.lookup(key=KEY),
    "lookup by id": lambda b: b.lookup(lock_id=LOCK_ID),
    "get_by_key": lambda b: aio.get_by_key(b, KEY),
    "owns": lambda b: aio.owns(b, LOCK_ID),
    "lock": lambda b: aio.lock(b, KEY).__aenter__(),
    "too long": lambda b: b.acquire(KEY * 50),
}


def error_of(operation, backend):
    try:
        result = operation(backend)
    except LockError as error:
        return error
    assert isinstance(result, LockError)
    return result


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "telemetry"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_dead_redis_shows_no_secret(dead_url, name, watched):
    with RedisBackend.from_url(dead_url, retry=Retry(NoBackoff(), 0)) as plain:
        backend = with_telemetry(plain, lambda _event: None) if watched else plain
        assert_hidden(error_of(OPERATIONS[name], backend))


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "telemetry"])
@pytest.mark.parametrize("name", ASYNC_OPERATIONS)
def test_asyncio_a_dead_redis_shows_no_secret(dead_url, name, watched):
    async def run():
        async with AsyncRedisBackend.from_url(dead_url, retry=AsyncRetry(NoBackoff(), 0)) as plain:
            backend = aio.with_telemetry(plain, lambda _event: None) if watched else plain
            with pytest.raises(LockError) as caught:
                await ASYNC_OPERATIONS[name](backend)
            return caught.value

    assert_hidden(asyncio.run(run()))


@pytest.mark.parametrize("name", ["acquire", "release", "lock"])
def test_a_redis_that_dies_after_the_connection_shows_no_secret(syncguard_redis, name):
    with redis.Redis(port=syncguard_redis.port, retry=Retry(NoBackoff(), 0)) as client:
        backend = RedisBackend(client)
        backend.is_locked("x")
        syncguard_redis.kill()
        assert_hidden(error_of(OPERATIONS[name], backend))


@pytest.mark.parametrize("backend_class", [RedisBackend, AsyncRedisBackend])
@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"redis://:{PASSWORD}@host:port/0", {}),
        ("redis://host/0", {"password": PASSWORD, "nonsense": 1}),
    ],
)
def test_from_url_shows_no_password(backend_class, url, options):
    with pytest.raises(LockError) as caught:
        backend_class.from_url(url, **options)
    assert_hidden(caught.value)


# -- what stays -----------------------------------------------------------------------------------


def test_the_callers_frames_keep_their_variables():
    def caller():
        own = "kept"
        try:
            raise ValueError(own)
        except ValueError:
            hides_arguments(syncguard.normalize_and_validate_key)("")

    with pytest.raises(LockError) as caught:
        caller()
    steps = list(traceback.walk_tb(caught.value.__traceback__))
    assert [f.f_locals["own"] for f, _ in steps if f.f_code.co_name == "caller"] == ["kept"]
    context = caught.value.__context__
    assert isinstance(context, ValueError)
    (frame,) = (f for f, _ in traceback.walk_tb(context.__traceback__))
    assert frame.f_locals["own"] == "kept"


def test_a_suspended_coroutine_of_ours_is_not_ended():
    """A task that reads replies for others hands its error over and continues."""

    async def read(errors, wait):
        try:
            raise ValueError
        except ValueError as error:
            errors.append(error)
        await wait()
        return "continued"

    ours = {"__name__": "syncguard.reader", "__builtins__": __builtins__}
    reads = FunctionType(read.__code__, ours)

    async def run():
        errors, go_on = [], asyncio.Event()
        task = asyncio.ensure_future(reads(errors, go_on.wait))
        await asyncio.sleep(0)
        clear_locals(errors[0])
        go_on.set()
        return await task

    assert asyncio.run(run()) == "continued"


def test_a_wrapped_function_keeps_its_name_and_signature():
    parameters = inspect.signature(RedisBackend.release).parameters
    assert list(parameters) == ["self", "lock_id", "signal"]
    assert RedisBackend.release.__name__ == "release"
    assert inspect.iscoroutinefunction(AsyncRedisBackend.release)
