"""No repr, error or log line contains a key, a lock id or a password."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard import (
    FENCE_WARN,
    Acquisition,
    LockError,
    LockLost,
    aio,
    generate_lock_id,
    get_by_key_raw,
    hash_key,
    lock,
    with_telemetry,
)
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

KEY = "very-secret-invoice"
PASSWORD = "hunter2hunter2"


def shows(value, *secrets):
    """Whether a secret is in one of the common text forms of the value."""
    texts = [repr(value), str(value), f"{value}", f"{value!a}", f"{[value]}"]
    if isinstance(value, BaseException):
        texts += traceback.format_exception(value)
        texts += [repr(value.args)]
    return [secret for secret in secrets if any(secret in text for text in texts)]


@pytest.fixture
def lock_of(backend):
    return backend.acquire(KEY, 60_000, holder="worker 7")


def test_results_show_neither_key_nor_lock_id(backend, lock_of):
    results = [
        lock_of,
        backend.acquire(KEY, 60_000),
        backend.extend(lock_of.lock_id, 60_000),
        backend.lookup(key=KEY),
        backend.lookup(lock_id=lock_of.lock_id),
        get_by_key_raw(backend, KEY),
        backend.live_locks(),
        lock_of.context(),
    ]
    adopted = backend.adopt(lock_of.lock_id, 60_000)
    results += [adopted, backend.adopt(lock_of.lock_id), backend.release(adopted.lock_id)]
    for result in results:
        assert shows(result, KEY, lock_of.lock_id, adopted.lock_id) == []


def test_the_repr_of_a_lock_shows_fence_hash_and_holder(backend, lock_of):
    assert lock_of.fence in repr(lock_of)
    info = backend.lookup(key=KEY)
    assert hash_key(KEY) in repr(info)
    assert "worker 7" in repr(info)


def test_a_held_lock_and_its_block_show_neither_key_nor_lock_id(syncguard_redis):
    with syncguard_redis.client() as client:
        block = lock(RedisBackend(client), KEY)
        with block as held:
            assert shows(held, KEY, held.lock_id) == []
            assert shows(block, KEY, held.lock_id) == []
            assert held.fence in repr(held)

    async def run():
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            block = aio.lock(backend, KEY)
            async with block as held:
                assert shows(held, KEY, held.lock_id) == []
                assert shows(block, KEY, held.lock_id) == []

    asyncio.run(run())


def test_events_show_neither_key_nor_lock_id_though_they_may_carry_them(syncguard_redis):
    events = []
    with syncguard_redis.client() as client:
        backend = with_telemetry(RedisBackend(client), events.append, include_raw=True)
        lock_id = backend.acquire(KEY, 60_000).lock_id
        backend.release(lock_id)
    assert [event.key for event in events] == [KEY, None]
    for event in events:
        assert shows(event, KEY, lock_id) == []


def test_backends_do_not_show_the_password():
    with RedisBackend.from_url(
        f"redis://user:{PASSWORD}@127.0.0.1:1/0", key_prefix="app"
    ) as backend:
        assert shows(backend, PASSWORD, "user") == []
        assert shows(with_telemetry(backend, print), PASSWORD) == []
        assert shows(backend.lock("k"), PASSWORD) == []
        assert "app" in repr(backend)
    asynchronous = AsyncRedisBackend.from_url(f"redis://user:{PASSWORD}@127.0.0.1:1/0")
    assert shows(asynchronous, PASSWORD, "user") == []


# -- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def dead_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # bound, but no process listens


def caught(operation):
    with pytest.raises(LockError) as info:
        operation()
    return info.value


def operations(backend, lock_id):
    return [
        lambda: backend.acquire(KEY, 60_000),
        lambda: backend.release(lock_id),
        lambda: backend.extend(lock_id, 60_000),
        lambda: backend.adopt(lock_id, 60_000),
        lambda: backend.is_locked(KEY),
        lambda: backend.lookup(key=KEY),
        lambda: backend.lookup(lock_id=lock_id),
    ]


def test_errors_of_an_unreachable_server_show_no_secret(dead_port):
    lock_id = generate_lock_id()
    url = f"redis://:{PASSWORD}@127.0.0.1:{dead_port}/0"
    with RedisBackend.from_url(url, retry=Retry(NoBackoff(), 0)) as backend:
        for operation in operations(backend, lock_id):
            error = caught(operation)
            assert error.code == "ServiceUnavailable"
            assert shows(error, KEY, lock_id, PASSWORD) == []
            assert shows(error.context, KEY, lock_id, PASSWORD) == []


def test_errors_of_a_wrong_password_show_no_secret():
    with RedisServer(password="right") as server:
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
        with RedisBackend.from_url(url) as backend:
            error = caught(lambda: backend.acquire(KEY))
    assert error.code == "AuthFailed"
    assert shows(error, KEY, PASSWORD) == []


def test_errors_of_a_server_that_rejects_requests_show_no_secret(client, backend):
    client.rpush(f"syncguard:{KEY}", "not a lock")
    assert shows(caught(lambda: backend.acquire(KEY)), KEY) == []
    client.set("syncguard:other", f'{{"key": "{KEY}"}}')
    assert shows(caught(lambda: backend.lookup(key="other")), KEY) == []


@pytest.mark.parametrize("backend_class", [RedisBackend, AsyncRedisBackend])
@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@host:notaport/0",
        f"redis://:{PASSWORD}/0@host:6379/0",  # a slash that should have been escaped
        f"redis://:x#{PASSWORD}@host:6379:6379/0",
        f"redis://user:{PASSWORD}@[::1/0",
        f"reddis://user:{PASSWORD}@host/0",
        f"redis://user:{PASSWORD}@host/0?socket_timeout=soon",
        PASSWORD,
    ],
)
def test_the_error_of_a_malformed_url_does_not_quote_it(backend_class, url):
    error = caught(lambda: backend_class.from_url(url))
    assert error.code == "InvalidArgument"
    assert shows(error, PASSWORD, "notaport") == []


@pytest.mark.parametrize(
    "operation",
    [
        lambda b: b.acquire(KEY * 50),
        lambda b: b.acquire(KEY + "\ud800"),
        lambda b: b.acquire("fence:" + KEY),
        lambda b: b.acquire([KEY]),
        lambda b: b.acquire(KEY.encode()),
        lambda b: b.acquire("k", KEY),
        lambda b: b.acquire("k", holder=KEY + "\n"),
        lambda b: b.release(KEY),
        lambda b: b.lookup(key=KEY, lock_id=KEY),
        lambda b: b.force_release(KEY, fence="", lock_id_hash=KEY),
    ],
)
def test_errors_of_bad_input_do_not_quote_it(backend, operation):
    error = caught(lambda: operation(backend))
    assert error.code == "InvalidArgument"
    assert shows(error, KEY) == []


def test_errors_of_a_timeout_and_of_a_lost_lock_show_no_secret(syncguard_redis, client):
    impatient = Acquisition(max_retries=0)
    with syncguard_redis.client() as own, ThreadPoolExecutor(1) as elsewhere:
        backend = RedisBackend(own)

        def lose():
            with lock(backend, KEY) as held:
                ids.append(held.lock_id)
                with pytest.raises(LockError) as info, lock(backend, KEY):
                    pytest.fail("entered")
                assert info.value.code == "InvalidArgument"
                assert shows(info.value, KEY, held.lock_id) == []
                other = elsewhere.submit(lock(backend, KEY, acquisition=impatient).__enter__)
                assert other.exception().code == "AcquisitionTimeout"
                assert shows(other.exception(), KEY, held.lock_id) == []
                client.flushall()

        ids = []
        with pytest.raises(LockLost) as info:
            lose()
    assert shows(info.value, KEY, *ids) == []
    assert info.value.context.key == KEY


# -- the log --------------------------------------------------------------------------------------


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "syncguard")
    formatter = logging.Formatter("%(message)s")
    return lambda: "\n".join(
        formatter.format(record) for record in caplog.records if record.name.startswith("syncguard")
    )


def test_a_release_that_fails_is_logged_without_key_lock_id_and_password(
    make_backend, syncguard_redis, log
):
    backend = make_backend()
    with backend.acquire(KEY, 60_000) as result:
        syncguard_redis.kill()
    assert "ServiceUnavailable" in log()
    assert KEY not in log()
    assert result.lock_id not in log()


def test_a_lock_block_whose_release_fails_is_logged_without_key_and_lock_id(syncguard_redis, log):
    with syncguard_redis.client(retry=Retry(NoBackoff(), 0)) as own:
        with lock(RedisBackend(own), KEY, 60_000) as held:
            syncguard_redis.kill()
    assert "ServiceUnavailable" in log()
    assert KEY not in log()
    assert held.lock_id not in log()


def test_a_failing_on_lost_is_logged_without_key_and_lock_id(syncguard_redis, client, log):
    async def lose():
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:

            def complain(held):
                ids.append(held.lock_id)
                raise RuntimeError(f"lost {KEY} {held.lock_id}")

            async with aio.lock(backend, KEY, on_lost=complain):
                client.flushall()

    ids = []
    with pytest.raises(LockLost):
        asyncio.run(lose())
    assert "on_lost" in log()
    assert KEY not in log()
    assert ids[0] not in log()


def test_a_password_is_not_logged_when_a_release_fails(log):
    with RedisServer(password=PASSWORD) as server:
        with RedisBackend.from_url(server.url, retry=Retry(NoBackoff(), 0)) as backend:
            with backend.acquire(KEY, 60_000):
                server.kill()
    assert "ServiceUnavailable" in log()
    assert PASSWORD not in log()


def test_the_fence_warning_shows_the_hash_and_not_the_key(client, backend, log):
    client.set(f"syncguard:fence:syncguard:{KEY}", int(FENCE_WARN))
    lock_id = backend.acquire(KEY, 60_000).lock_id
    assert hash_key(KEY) in log()
    assert KEY not in log()
    assert lock_id not in log()


# -- hashes with a secret -------------------------------------------------------------------------


def test_a_secret_changes_every_displayed_hash(client, make_backend, log):
    backend = make_backend(hash_secret="pepper")
    client.set(f"syncguard:fence:syncguard:{KEY}", int(FENCE_WARN))
    lock_id = backend.acquire(KEY, 60_000).lock_id
    info = backend.lookup(key=KEY)
    assert [info] == backend.live_locks()
    assert info.key_hash == backend.hash(KEY)
    assert info.lock_id_hash == backend.hash(lock_id)
    for shown in (info.key_hash, info.lock_id_hash, log()):
        assert hash_key(KEY) not in shown
        assert hash_key(lock_id) not in shown
    assert info.key_hash in log()


def test_a_secret_does_not_change_what_is_stored(make_backend):
    lock_id = make_backend(hash_secret="pepper").acquire(KEY, 60_000).lock_id
    assert make_backend().release(lock_id).ok


def test_backends_with_the_same_secret_show_the_same_hashes_and_can_force_release(make_backend):
    mine, theirs = make_backend(hash_secret="pepper"), make_backend(hash_secret=b"pepper")
    mine.acquire(KEY, 60_000)
    [info] = theirs.live_locks()
    assert info.key_hash == mine.hash(KEY)
    seen = {"fence": info.fence, "lock_id_hash": info.lock_id_hash}
    assert not make_backend(hash_secret="salt").force_release(info.key_hash, **seen).ok
    assert theirs.force_release(info.key_hash, **seen).ok


def test_events_are_hashed_with_the_secret(syncguard_redis):
    events = []
    with syncguard_redis.client() as client:
        backend = RedisBackend(client, hash_secret="pepper")
        with_telemetry(backend, events.append).is_locked(KEY)
        assert events[0].key_hash == backend.hash(KEY) != hash_key(KEY)


def test_the_secret_is_not_shown(syncguard_redis):
    with redis.Redis(port=syncguard_redis.port) as client:
        assert shows(RedisBackend(client, hash_secret=PASSWORD), PASSWORD) == []
