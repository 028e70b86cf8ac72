"""``min_replicas``: a lock counts only when replicas have confirmed it."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fakeredis
import pytest
import redis
import redis.asyncio
from wait_until import wait_until, wait_until_async

from syncguard import Acquisition, LockError, NetworkTimeout, ServiceUnavailable, aio, lock
from syncguard.backend import GivenLocation, Location
from syncguard.backends import make_backend
from syncguard.redis import AsyncRedisBackend, RedisBackend, scripts
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow

LONG_MS = 600_000
ONE = {"min_replicas": 1, "replica_timeout_ms": 50}
PATIENT = {"min_replicas": 1, "replica_timeout_ms": 60_000}
NO_LIMIT = {"socket_timeout": None}


class Pair:
    """A primary and its replica."""

    def __init__(self, primary: RedisServer, replica: RedisServer) -> None:
        self.primary, self.replica = primary, replica
        self.port = primary.port
        self.on_primary, self.on_replica = primary.client(), replica.client()

    def close(self) -> None:
        self.on_primary.close()
        self.on_replica.close()

    def names_on_replica(self) -> list[bytes]:
        found: list[bytes] = self.on_replica.keys("*")
        return found


@pytest.fixture(scope="module")
def started() -> Iterator[Pair]:
    at_once = ["repl-diskless-sync-delay 0", "repl-timeout 600"]
    with RedisServer(config=at_once) as primary, RedisServer(config=at_once) as replica:
        pair = Pair(primary, replica)
        pair.on_replica.replicaof(primary.host, primary.port)
        wait_until(lambda: pair.on_replica.info("replication")["master_link_status"] == "up")
        yield pair
        pair.close()


@pytest.fixture
def pair(started: Pair) -> Pair:
    started.on_primary.flushall()
    assert started.on_primary.wait(1, 20_000) == 1
    return started


@pytest.fixture(params=[2, 100], ids=["small pool", "large pool"])
def backend(request, backend_on, pair):
    client = {"max_connections": request.param, **NO_LIMIT}
    return backend_on(pair, client=client, **PATIENT)


@pytest.fixture(params=[2, 100], ids=["small pool", "large pool"])
def impatient(request, backend_on, pair):
    return backend_on(pair, client={"max_connections": request.param}, **ONE)


@pytest.fixture
def plain(backend_on, pair):
    """A backend that asks no replica."""
    return backend_on(pair)


# -- enough replicas ---------------------------------------------------------------------------


def test_a_lock_that_was_acquired_is_on_the_replica(backend, pair):
    for n in range(20):
        assert backend.acquire(f"k{n}", LONG_MS).ok
        assert f"syncguard:k{n}".encode() in pair.names_on_replica()


def test_an_extension_and_an_adoption_are_on_the_replica(backend, pair):
    held = backend.acquire("k", LONG_MS)
    assert backend.extend(held.lock_id, 10 * LONG_MS).ok
    assert pair.on_replica.pttl("syncguard:k") > LONG_MS
    adopted = backend.adopt(held.lock_id, 20 * LONG_MS)
    assert adopted.ok
    assert adopted.fence == held.fence
    assert pair.on_replica.pttl("syncguard:k") > 10 * LONG_MS
    assert backend.release(adopted.lock_id).ok


def test_the_connection_stays_in_order_after_a_script_flush_and_after_an_error(backend, pair):
    pair.on_primary.rpush("syncguard:list", "not a lock")
    for n in range(3):
        pair.on_primary.script_flush()
        assert backend.acquire(f"k{n}", LONG_MS).ok
        with pytest.raises(LockError) as caught:
            backend.acquire("list", LONG_MS)
        assert caught.value.code == "InvalidArgument"
        assert not backend.acquire(f"k{n}", LONG_MS).ok


def test_a_request_that_is_sent_again_writes_again(pair):
    """Else the WAIT after it, on another connection, would wait for nothing."""

    def changes() -> int:
        count: int = pair.on_primary.info("persistence")["rdb_changes_since_last_save"]
        return count

    with redis.Redis(port=pair.port, **NO_LIMIT) as client:
        backend = RedisBackend(client, **PATIENT)
        acquire = backend._calls.acquire("k", LONG_MS, None)
        granted = backend._runner.run(acquire)
        before = changes()
        assert backend._runner.run(acquire) == granted
        assert changes() > before
        adopt = backend._calls.adopt(acquire.lock_id, LONG_MS, None)
        adopted = backend._runner.run(adopt)
        before = changes()
        assert backend._runner.run(adopt) == adopted
        assert changes() > before


# -- too few -----------------------------------------------------------------------------------


def test_a_lock_that_too_few_replicas_confirm_is_released(impatient, pair):
    with pair.replica.paused():
        with pytest.raises(ServiceUnavailable) as caught:
            impatient.acquire("secret-key", LONG_MS)
        wait_until(lambda: undo_thread.pending == 0)
        assert not impatient.is_locked("secret-key")
    text = str(caught.value)
    assert "only 0 of 1 replicas" in text
    assert "the lock is released" in text
    assert "secret" not in text
    assert caught.value.context.key == "secret-key"
    assert str(pickle.loads(pickle.dumps(caught.value))) == text  # noqa: S301 - our own
    wait_until(lambda: pair.on_primary.wait(1, 1_000) == 1)


def test_the_lock_is_free_as_soon_as_the_error_is_raised(backend_on, plain, pair):
    """No caller waits for the end of a TTL because a replica was missing."""
    backend = backend_on(pair, **ONE)
    with pair.replica.paused():
        for _ in range(3):
            with pytest.raises(ServiceUnavailable):
                backend.acquire("k", LONG_MS)
            wait_until(lambda: undo_thread.pending == 0)
            again = plain.acquire("k", LONG_MS)
            assert again.ok
            plain.release(again.lock_id)


def test_an_extension_that_too_few_replicas_confirm_does_not_release_the_lock(
    impatient, plain, pair
):
    """Its holder relies on the earlier expiry, which is not over."""
    held = plain.acquire("k", LONG_MS)
    with pair.replica.paused():
        with pytest.raises(ServiceUnavailable) as caught:
            impatient.extend(held.lock_id, 2 * LONG_MS)
        assert "the extension does not count" in str(caught.value)
        assert impatient.is_locked("k")
        assert not impatient.acquire("k").ok
    assert impatient.release(held.lock_id).ok


def test_an_adoption_that_too_few_replicas_confirm_releases_the_lock(impatient, plain, pair):
    held = plain.acquire("k", LONG_MS)
    with pair.replica.paused():
        with pytest.raises(ServiceUnavailable):
            impatient.adopt(held.lock_id, LONG_MS)
        wait_until(lambda: undo_thread.pending == 0)
        assert not impatient.is_locked("k")
        assert not impatient.release(held.lock_id).ok


def test_a_wait_for_replicas_ends_with_the_deadline_of_the_lock(pair):
    policy = Acquisition(timeout_ms=300)
    with redis.Redis(port=pair.port, **NO_LIMIT) as client, pair.replica.paused():
        backend = RedisBackend(client, **PATIENT)
        with pytest.raises(NetworkTimeout), lock(backend, "k", LONG_MS, acquisition=policy):
            pass
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")


def test_a_missing_right_for_wait_is_reported_and_the_lock_released(pair, backend_on):
    pair.on_primary.acl_setuser(
        "few", enabled=True, nopass=True, reset=True, keys="*", commands=["+@all", "-wait"]
    )
    for size in (2, 100):
        client = {"username": "few", "password": "any", "max_connections": size}
        backend = backend_on(pair, client=client, **ONE)
        with pytest.raises(LockError) as caught:
            backend.acquire("k", LONG_MS)
        assert caught.value.code == "AuthFailed"
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked("k")


# -- asyncio: one WAIT for many calls ----------------------------------------------------------


async def connected(pair: Pair, stack: contextlib.AsyncExitStack) -> AsyncRedisBackend:
    client = redis.asyncio.Redis(port=pair.port, **NO_LIMIT)
    await stack.enter_async_context(client)
    return await stack.enter_async_context(AsyncRedisBackend(client, **PATIENT))


def waits(pair: Pair) -> int:
    stats = pair.on_primary.info("commandstats")
    return int(stats.get("cmdstat_wait", {}).get("calls", 0))


def test_calls_of_one_event_loop_share_their_waits(pair):
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            backend = await connected(pair, stack)
            assert (await backend.acquire("first", LONG_MS)).ok
            before = waits(pair)
            results = await asyncio.gather(*(backend.acquire(f"k{n}", LONG_MS) for n in range(300)))
            assert all(result.ok for result in results)
            assert waits(pair) - before <= 3
            assert len(pair.on_replica.keys("syncguard:k*")) == 300

    asyncio.run(main())


def test_other_calls_do_not_wait_for_the_replicas(pair):
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            backend = await connected(pair, stack)
            held = await backend.acquire("held", LONG_MS)
            with pair.replica.paused():
                acquiring = asyncio.ensure_future(backend.acquire("k", LONG_MS))
                await wait_until_async(lambda: pair.on_primary.exists("syncguard:k"))
                assert await backend.is_locked("k")
                assert (await backend.release(held.lock_id)).ok
                assert not acquiring.done()
                later = asyncio.ensure_future(backend.acquire("later", LONG_MS))
                await asyncio.sleep(0)
            assert (await acquiring).ok
            assert (await later).ok

    asyncio.run(asyncio.wait_for(main(), 120))


def test_calls_that_lost_their_connection_are_sent_again_and_confirmed(pair):
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            backend = await connected(pair, stack)
            assert (await backend.acquire("first", LONG_MS)).ok
            with pair.replica.paused():
                tasks = [asyncio.ensure_future(backend.acquire(f"k{n}", LONG_MS)) for n in range(5)]
                await wait_until_async(lambda: pair.on_primary.exists("syncguard:k0"))
                pair.on_primary.client_kill_filter(_type="normal", skipme=True)
                await wait_until_async(lambda: pair.on_primary.exists("syncguard:k4"))
                assert not any(task.done() for task in tasks)
            results = await asyncio.gather(*tasks)
            assert [result.ok for result in results] == [True] * 5

    asyncio.run(asyncio.wait_for(main(), 120))


def test_closing_the_backend_ends_the_calls_that_wait_for_replicas(pair):
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            backend = await connected(pair, stack)
            # Now the server knows the script. Else the first WAIT follows a request that wrote
            # nothing, and the request that writes waits behind it.
            assert (await backend.acquire("first", LONG_MS)).ok
            with pair.replica.paused():
                acquiring = asyncio.ensure_future(backend.acquire("k", LONG_MS))
                await wait_until_async(lambda: pair.on_primary.exists("syncguard:k"))
                await backend.aclose()
                with pytest.raises(ServiceUnavailable):
                    await acquiring
            await wait_until_async(lambda: undo_thread.pending == 0)
            assert not pair.on_primary.exists("syncguard:k")

    asyncio.run(asyncio.wait_for(main(), 120))


# -- heartbeats --------------------------------------------------------------------------------
# A heartbeat asks the replicas with less patience: it waits for an eighth of the TTL.


def test_an_extension_without_confirmation_does_not_count_and_the_lock_is_lost(pair):
    with redis.Redis(port=pair.port, **NO_LIMIT) as client:
        backend = RedisBackend(client, **PATIENT)
        lost, seen = [], []
        block = lock(backend, "k", 9_000, auto_extend=True, on_lost=lost.append)
        with contextlib.suppress(LockError), block as held, pair.replica.paused():
            wait_until(lambda: seen.append(backend.lookup(key="k")) or lost, 60)
        assert any(info and info.expires_at_ms > held.expires_at_ms for info in seen)
        assert lost == [held]


def test_asyncio_an_extension_without_confirmation_does_not_count(pair):
    async def main() -> None:
        async with redis.asyncio.Redis(port=pair.port, **NO_LIMIT) as client:
            backend = AsyncRedisBackend(client, **PATIENT)
            lost, seen = [], []
            stack = contextlib.ExitStack()
            block = aio.lock(backend, "k", 9_000, auto_extend=True, on_lost=lost.append)
            with contextlib.suppress(LockError):
                async with block as held:
                    stack.enter_context(pair.replica.paused())
                    while not lost:
                        seen.append(await backend.lookup(key="k"))
                        await asyncio.sleep(0.002)
            stack.close()
            assert any(info and info.expires_at_ms > held.expires_at_ms for info in seen)
            assert lost == [held]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_heartbeats_go_on_when_the_replica_confirms_again(pair, caplog):
    with redis.Redis(port=pair.port, **NO_LIMIT) as client:
        backend = RedisBackend(client, **PATIENT)
        with (
            lock(backend, "one", 9_000, auto_extend=True) as one,
            lock(backend, "two", 9_100, auto_extend=True) as two,
        ):
            with pair.replica.paused():
                wait_until(lambda: "replicas confirmed" in caplog.text)
            first, second = one.expires_at_ms, two.expires_at_ms
            wait_until(lambda: one.expires_at_ms > first and two.expires_at_ms > second)


def test_asyncio_heartbeats_go_on_when_the_replica_confirms_again(pair, caplog):
    async def main() -> None:
        async with redis.asyncio.Redis(port=pair.port, **NO_LIMIT) as client:
            backend = AsyncRedisBackend(client, **PATIENT)
            async with aio.lock(backend, "one", 9_000, auto_extend=True) as one:
                with pair.replica.paused():
                    await wait_until_async(lambda: "replicas confirmed" in caplog.text)
                first = one.expires_at_ms
                await wait_until_async(lambda: one.expires_at_ms > first)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_further_extensions_wait_for_the_confirmation_and_are_sent_together(pair):
    with redis.Redis(port=pair.port, **NO_LIMIT) as client:
        backend = RedisBackend(client, **PATIENT)
        ids = [RedisBackend(client).acquire(f"k{n}", LONG_MS).lock_id for n in range(4)]
        channel = backend.open_extend_channel(60_000)
        assert channel is not None
        answers = []

        def arrived(count: int) -> bool:
            answers.extend(channel.receive())
            return len(answers) >= count

        before = waits(pair)
        channel.send([(ids[0], LONG_MS)])
        for lock_id in ids[1:]:
            channel.send([(lock_id, LONG_MS)])
        wait_until(lambda: arrived(4))
        assert waits(pair) - before == 2
        assert all(answer.ok for answer in answers)
        pair.on_primary.script_flush()
        channel.send([(lock_id, LONG_MS) for lock_id in ids])
        answers.clear()
        wait_until(lambda: arrived(4))
        assert all(answer.ok for answer in answers)
        channel.close()


# -- arguments ---------------------------------------------------------------------------------

BAD = {
    "negative": {"min_replicas": -1},
    "a flag": {"min_replicas": True},
    "a fraction": {"min_replicas": 0.5},
    "too many": {"min_replicas": 1_001},
    "text": {"min_replicas": "1"},
    "no time": {"min_replicas": 1, "replica_timeout_ms": 0},
    "no time, unused": {"replica_timeout_ms": -5},
    "a fraction of time": {"min_replicas": 1, "replica_timeout_ms": 1.5},
    "a flag as time": {"min_replicas": 1, "replica_timeout_ms": True},
    "longer than Redis accepts": {"min_replicas": 1, "replica_timeout_ms": 2**31},
    "longer than the socket's": {"min_replicas": 1, "replica_timeout_ms": 2_000},
}
KINDS = {
    "blocking": lambda **options: RedisBackend(redis.Redis(socket_timeout=2), **options),
    "asyncio": lambda **options: AsyncRedisBackend(
        redis.asyncio.Redis(socket_timeout=2), **options
    ),
    "blocking url": lambda **options: RedisBackend.from_url(
        "redis://127.0.0.1:1", socket_timeout=2, **options
    ),
    "asyncio url": lambda **options: AsyncRedisBackend.from_url(
        "redis://127.0.0.1:1", socket_timeout=2, **options
    ),
    "blocking cluster": lambda **options: RedisBackend.from_url(
        "redis+cluster://127.0.0.1:1", socket_timeout=2, **options
    ),
    "asyncio cluster": lambda **options: AsyncRedisBackend.from_url(
        "redis+cluster://127.0.0.1:1", socket_timeout=2, **options
    ),
}


@pytest.mark.parametrize("options", BAD.values(), ids=BAD)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_bad_arguments_are_refused_without_a_connection(make, options):
    with pytest.raises(LockError) as caught:
        make(**options)
    assert caught.value.code == "InvalidArgument"


@pytest.mark.parametrize("kind", [RedisBackend, AsyncRedisBackend])
def test_the_query_of_a_url_has_the_options(kind):
    url = "redis://127.0.0.1:1/3?min_replicas=2&socket_timeout=9&replica_timeout_ms=750"
    backend = kind.from_url(url, min_replicas=1)
    assert backend._calls.acknowledgement.wait == ("WAIT", "2", "750")
    settings = backend._client.connection_pool.connection_kwargs
    assert (settings["db"], settings["socket_timeout"]) == (3, 9)
    assert kind.from_url("redis://127.0.0.1:1")._calls.acknowledgement is None


def test_a_cluster_is_not_asked_when_its_backend_is_made():
    url = "redis+cluster://127.0.0.1:1?min_replicas=1"
    assert RedisBackend.from_url(url)._calls.acknowledgement.wait == ("WAIT", "1", "500")
    sentinel = "redis+sentinel://127.0.0.1:1/ours/0?min_replicas=2&replica_timeout_ms=9"
    assert AsyncRedisBackend.from_url(sentinel)._calls.acknowledgement.wait == ("WAIT", "2", "9")


@pytest.mark.parametrize("value", ["one", "-1", "1.5", "", "9999", "²"])
def test_a_bad_number_in_the_query_is_refused_and_not_quoted(value):
    with pytest.raises(LockError) as caught:
        RedisBackend.from_url(f"redis://:secret@127.0.0.1:1?min_replicas={value}")
    assert caught.value.code == "InvalidArgument"
    assert "min_replicas" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_malformed_url_with_the_option_is_refused_as_any_other():
    for url in ("redis://[::1?min_replicas=1", 5):
        with pytest.raises(LockError) as caught:
            RedisBackend.from_url(url)
        assert caught.value.code == "InvalidArgument"


def test_the_default_time_limit_of_the_client_counts_too():
    """redis-py 8 has one; a client of an older version waits without a limit."""
    limit_s = redis.Connection().socket_timeout
    if limit_s is None:
        RedisBackend.from_url("redis://127.0.0.1:1", min_replicas=1, replica_timeout_ms=10**6)
        return
    with pytest.raises(LockError, match="socket_timeout"):
        RedisBackend.from_url(
            "redis://127.0.0.1:1", min_replicas=1, replica_timeout_ms=int(limit_s * 1000)
        )


def test_a_mock_has_no_replicas():
    with pytest.raises(LockError, match="real connections"):
        RedisBackend(fakeredis.FakeRedis(), min_replicas=1)
    with pytest.raises(LockError, match="real connections"):
        AsyncRedisBackend(fakeredis.FakeAsyncRedis(), min_replicas=1)


def test_the_settings_of_a_project_have_the_options_and_its_pages_do_not_use_them():
    url = "redis://127.0.0.1:1/0?replica_timeout_ms=3000"
    given = GivenLocation(location=url, options={"min_replicas": 1})
    location = RedisBackend.read_location(given)
    assert isinstance(location, Location)
    backend = make_backend(RedisBackend, location, key_prefix="shop")
    assert backend._calls.acknowledgement.wait == ("WAIT", "1", "3000")
    inspector = make_backend(RedisBackend, location.quick, key_prefix="shop")
    assert inspector._calls.acknowledgement is None


# -- a primary that becomes a replica -----------------------------------------------------------


@contextlib.contextmanager
def demoted_while_it_waits(server: RedisServer) -> Iterator[None]:
    """Once a client waits for replicas, the server becomes the replica of one that is down."""
    with server.client() as admin, ThreadPoolExecutor(1) as pool:
        admin.script_load(scripts.ACQUIRE.text)  # else it is sent again, and refused

        def demote() -> None:
            wait_until(lambda: admin.info("clients")["blocked_clients"] == 1)
            admin.replicaof("127.0.0.1", 1)

        demoted = pool.submit(demote)
        yield
        demoted.result()


def test_a_primary_that_becomes_a_replica_while_it_waits_is_unavailable() -> None:
    """Redis then ends every wait with the error UNBLOCKED."""
    with (
        RedisServer() as server,
        server.client(**NO_LIMIT) as client,
        demoted_while_it_waits(server),
        pytest.raises(ServiceUnavailable),
    ):
        RedisBackend(client, **PATIENT).acquire("k")
    undo_thread.drop_jobs()


def test_asyncio_a_primary_that_becomes_a_replica_while_it_waits_is_unavailable() -> None:
    async def main() -> None:
        async with (
            redis.asyncio.Redis(host=server.host, port=server.port, **NO_LIMIT) as client,
            AsyncRedisBackend(client, **PATIENT) as backend,
        ):
            with pytest.raises(ServiceUnavailable):
                await backend.acquire("k")

    with RedisServer() as server, demoted_while_it_waits(server):
        asyncio.run(main())
    undo_thread.drop_jobs()
