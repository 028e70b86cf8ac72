"""One connection for all short calls of an event loop: replies, faults, loops, limits."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from contextlib import asynccontextmanager, suppress

import fakeredis
import pytest
import redis.asyncio
import trustme
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from relay import Relay, Silence
from wait_until import wait_until_async

from syncguard import Acquisition, LockError, NetworkTimeout, aio
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis._transport import pipelined_connection
from syncguard.redis._transport.connections import LARGE_POOL
from syncguard.redis._transport.reply_parser import ReplyParser
from syncguard.redis._transport.runner_async import AsyncConnectionRunner, PipelinedRunner

MINUTE_MS = 60_000


@asynccontextmanager
async def backend_on(server, **options):
    # However busy the machine is, no call times out, unless a test wants that.
    settings = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 60, **options}
    async with redis.asyncio.Redis(port=server.port, **settings) as client:
        async with AsyncRedisBackend(client) as backend:
            yield backend


def connections(server):
    with server.client() as admin:
        return len(admin.client_list()) - 1


async def acquire_and_release(backend, key):
    lock = await backend.acquire(key, MINUTE_MS)
    assert lock.ok
    assert (await lock.release()).ok
    return lock.fence


def test_many_calls_at_once_use_one_connection(frail_redis):
    async def main():
        async with backend_on(frail_redis) as backend:
            assert isinstance(backend._runner, PipelinedRunner)
            fences = await asyncio.gather(
                *(acquire_and_release(backend, f"k{number}") for number in range(300))
            )
            assert fences == ["000000000000001"] * 300
            assert connections(frail_redis) == 1

    asyncio.run(main())


def test_more_simultaneous_locks_than_the_pool_has_connections(frail_redis):
    async def main():
        async with backend_on(frail_redis, max_connections=LARGE_POOL) as backend:

            async def hold(number):
                async with aio.lock(backend, f"k{number}", MINUTE_MS):
                    return True

            assert all(await asyncio.gather(*(hold(number) for number in range(200))))

    asyncio.run(main())


def test_a_small_pool_keeps_its_limit(frail_redis):
    async def main():
        async with backend_on(frail_redis, max_connections=2) as backend:
            assert isinstance(backend._runner, AsyncConnectionRunner)
            assert await acquire_and_release(backend, "k")

    asyncio.run(main())


def test_without_hiredis_it_works_too(frail_redis, monkeypatch):
    monkeypatch.setattr(pipelined_connection, "reply_reader", ReplyParser)

    async def main():
        async with backend_on(frail_redis) as backend:
            await asyncio.gather(*(acquire_and_release(backend, f"k{n}") for n in range(50)))

    asyncio.run(main())


def test_a_cancelled_caller_costs_neither_the_connection_nor_the_order(frail_redis):
    async def main():
        async with backend_on(frail_redis) as backend:
            await backend.is_locked("warm")
            with frail_redis.client() as admin:
                before = [client["id"] for client in admin.client_list()]
                tasks = [asyncio.ensure_future(backend.is_locked(f"k{n}")) for n in range(20)]
                last = asyncio.ensure_future(acquire_and_release(backend, "k"))
                await asyncio.sleep(0)
                for task in tasks[::2]:
                    task.cancel()
                answers = await asyncio.gather(*tasks[1::2], last)
                assert answers == [False] * 10 + ["000000000000001"]
                assert [client["id"] for client in admin.client_list()] == before

    asyncio.run(main())


def test_scripts_that_redis_has_forgotten_are_sent_again(frail_redis):
    async def main():
        async with backend_on(frail_redis) as backend:
            await acquire_and_release(backend, "k")
            with frail_redis.client() as admin:
                admin.script_flush()
            fences = await asyncio.gather(
                *(acquire_and_release(backend, f"n{n}") for n in range(9))
            )
            assert len(fences) == 9

    asyncio.run(main())


def test_a_connection_that_the_server_closed_is_replaced(frail_redis):
    async def main():
        async with backend_on(frail_redis) as backend:
            lock = await backend.acquire("k", MINUTE_MS)
            with frail_redis.client() as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
            assert await backend.is_locked("k")
            with frail_redis.client() as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
            result = await lock.release()
            assert (result.ok, result.assumed) == (True, False)

    asyncio.run(main())


class SilentRelay(Relay):
    """Swallows replies while ``silent`` is set, and all later ones of such a connection."""

    def __init__(self, port):
        super().__init__(port)
        self.silent = threading.Event()

    def reply(self, data):
        return Silence() if self.silent.is_set() else data


async def is_locked(backend):
    """Ask until it is answered: on a busy machine one call may last longer than its time-out."""
    for _ in range(50):
        with suppress(NetworkTimeout):
            return await backend.is_locked("k")
    raise AssertionError("no call was answered")


def test_a_stall_fails_the_calls_and_replaces_the_connection(frail_redis):
    async def main():
        with SilentRelay(frail_redis.port) as relay:
            async with backend_on(relay, socket_timeout=0.5) as backend:
                await is_locked(backend)
                relay.silent.set()
                results = await asyncio.gather(
                    *(backend.is_locked(f"k{n}") for n in range(5)), return_exceptions=True
                )
                assert [error.code for error in results] == ["NetworkTimeout"] * 5
                relay.silent.clear()
                assert not await is_locked(backend)

    asyncio.run(main())


def test_a_stall_is_tried_again_if_the_client_says_so(frail_redis):
    async def main():
        with SilentRelay(frail_redis.port) as relay:
            retry = Retry(NoBackoff(), 50)
            async with backend_on(relay, socket_timeout=0.3, retry=retry) as backend:
                await backend.is_locked("warm")
                relay.silent.set()
                waiting = asyncio.ensure_future(backend.is_locked("k"))
                await asyncio.sleep(0.4)
                relay.silent.clear()
                assert await waiting is False

    asyncio.run(main())


@pytest.mark.parametrize("used_before", [True, False], ids=["open connection", "new connection"])
def test_the_deadline_of_lock_bounds_the_wait_of_its_caller_only(frail_redis, used_before):
    async def main():
        async with backend_on(frail_redis, socket_timeout=60) as backend:
            if used_before:
                await backend.is_locked("warm")
            frail_redis.pause()
            other = asyncio.ensure_future(backend.is_locked("k"))
            began = time.monotonic()
            with pytest.raises(LockError) as caught:
                await aio.lock(
                    backend, "mine", acquisition=Acquisition(timeout_ms=700)
                ).__aenter__()
            assert caught.value.code == "NetworkTimeout"
            assert time.monotonic() - began < 20
            assert not other.done()
            frail_redis.resume()
            assert await other is False

            for _ in range(2_000):
                if not await backend.is_locked("mine"):
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("the abandoned attempt holds the lock")

    asyncio.run(main())


def test_a_signal_aborts_the_wait_for_a_redis_that_hangs(frail_redis):
    async def main():
        async with backend_on(frail_redis, socket_timeout=60) as backend:
            await backend.is_locked("warm")
            signal = asyncio.Event()
            with frail_redis.paused():
                asyncio.get_running_loop().call_later(0.2, signal.set)
                with pytest.raises(LockError) as caught:
                    await asyncio.wait_for(
                        aio.lock(
                            backend,
                            "k",
                            acquisition=Acquisition(timeout_ms=MINUTE_MS),
                            signal=signal,
                        ).__aenter__(),
                        20,
                    )
                assert caught.value.code == "Aborted"

    asyncio.run(main())


def test_a_loading_server_gets_one_fresh_try(frail_redis):
    """LOADING is an answer: nothing was executed, and a new connection may reach another server."""

    class LoadingOnce(Relay):
        told = False

        def reply(self, data):
            if data.startswith(b"*") and not self.told:
                self.told = True
                return b"-LOADING Redis is loading the dataset in memory\r\n"
            return data

    async def main():
        with LoadingOnce(frail_redis.port) as relay:
            async with backend_on(relay) as backend:
                assert await acquire_and_release(backend, "k")
                assert relay.told

    asyncio.run(main())


def test_moved_is_reported_as_unavailable(frail_redis):
    class Moved(Relay):
        def reply(self, data):
            is_of_script = data.startswith((b":", b"-NOSCRIPT"))
            return b"-MOVED 1 127.0.0.1:1\r\n" if is_of_script else data

    async def main():
        with Moved(frail_redis.port) as relay:
            async with backend_on(relay) as backend:
                with pytest.raises(LockError) as caught:
                    await backend.is_locked("k")
                assert caught.value.code == "ServiceUnavailable"

    asyncio.run(main())


def test_too_many_calls_at_once_are_refused(frail_redis, monkeypatch):
    monkeypatch.setattr(pipelined_connection, "MAX_QUEUED", 20)

    async def main():
        async with backend_on(frail_redis) as backend:
            results = await asyncio.gather(
                *(backend.is_locked(f"k{n}") for n in range(30)), return_exceptions=True
            )
            assert results[:20] == [False] * 20
            assert [error.code for error in results[20:]] == ["RateLimited"] * 10

    asyncio.run(main())


def test_a_full_socket_pauses_writing_and_nothing_is_lost(frail_redis):
    async def main():
        async with backend_on(frail_redis, socket_timeout=60) as backend:
            await backend.is_locked("warm")
            [connection] = backend._runner._connections.values()
            with frail_redis.paused():
                tasks = [
                    asyncio.ensure_future(backend.acquire(f"{n:0>400}", MINUTE_MS))
                    for n in range(8_000)
                ]
                await wait_until_async(lambda: connection._paused)
                late = asyncio.ensure_future(backend.acquire("late", MINUTE_MS))
                await asyncio.sleep(0.05)
                assert connection._queued
            results = await asyncio.gather(*tasks, late)
            assert all(result.ok for result in results)

    asyncio.run(main())


def test_a_backend_works_in_a_second_loop_and_leaves_nothing(frail_redis):
    client = redis.asyncio.Redis(port=frail_redis.port)
    backend = AsyncRedisBackend(client)
    for number in range(3):
        assert asyncio.run(acquire_and_release(backend, "k")) == f"{number + 1:015}"

    async def end():
        await backend.aclose()
        await client.aclose()

    asyncio.run(end())
    assert connections(frail_redis) == 0


def test_a_backend_works_on_the_loops_of_two_threads_at_once(frail_redis):
    client = redis.asyncio.Redis(port=frail_redis.port)
    backend = AsyncRedisBackend(client)
    failures = []

    async def work(name):
        for number in range(50):
            await acquire_and_release(backend, f"{name}{number}")
        await backend.aclose()

    def run(name):
        try:
            asyncio.run(work(name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_forked_child_opens_its_own_connection(frail_redis):
    async def main():
        async with backend_on(frail_redis) as backend:
            await backend.is_locked("warm")
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    asyncio.events._set_running_loop(None)
                    loop = asyncio.new_event_loop()
                    fence = loop.run_until_complete(acquire_and_release(backend, "k"))
                    status = 0 if fence == "000000000000001" else 2
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0
            assert await acquire_and_release(backend, "k") == "000000000000002"
            assert connections(frail_redis) == 1

    asyncio.run(main())


@asynccontextmanager
async def tls_in_front_of(server, certificate):
    """A port with TLS. What arrives there goes to the server, which has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)

    async def forward(reader, writer):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the test closed a connection
        writer.close()

    async def serve(reader, writer):
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(forward(reader, to_server), forward(from_server, writer))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on an event loop of this kind."""
    if request.param == "asyncio":
        return asyncio.run
    uvloop = pytest.importorskip("uvloop")  # Windows has none

    def on_uvloop(main):
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()

    return on_uvloop


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def test_over_tls(frail_redis, authority, run, tmp_path):
    trusted = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)

    async def main():
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        async with tls_in_front_of(frail_redis, certificate) as port:
            options = {"host": "127.0.0.1", "port": port, "ssl": True}
            async with redis.asyncio.Redis(**options, ssl_ca_certs=str(trusted)) as client:
                async with AsyncRedisBackend(client) as backend:
                    assert isinstance(backend._runner, PipelinedRunner)
                    await asyncio.gather(
                        *(acquire_and_release(backend, f"k{n}") for n in range(99))
                    )
                    assert connections(frail_redis) == 1
                    with frail_redis.client() as admin:
                        admin.client_kill_filter(_type="normal", skipme=True)
                    assert await acquire_and_release(backend, "k")

    run(main())


def test_over_tls_a_certificate_that_is_not_trusted_is_refused(frail_redis, authority):
    async def main():
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        async with tls_in_front_of(frail_redis, certificate) as port:
            options = {"host": "127.0.0.1", "port": port, "ssl": True}
            async with redis.asyncio.Redis(**options) as client:
                async with AsyncRedisBackend(client) as backend:
                    with pytest.raises(LockError) as caught:
                        await backend.is_locked("k")
                    assert caught.value.code == "ServiceUnavailable"

    asyncio.run(main())


def test_on_uvloop(frail_redis):
    uvloop = pytest.importorskip("uvloop")  # Windows has none

    async def main():
        async with backend_on(frail_redis) as backend:
            await asyncio.gather(*(acquire_and_release(backend, f"k{n}") for n in range(50)))
            with frail_redis.client() as admin:
                admin.client_kill_filter(_type="normal", skipme=True)
            assert await acquire_and_release(backend, "k")

    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


@pytest.mark.parametrize("pool_size", [4, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_names_are_utf_8_whatever_the_encoding_of_the_client(frail_redis, encoding, pool_size):
    key = "schlüssel"
    options = {"encoding": encoding, "max_connections": pool_size}

    async def main():
        async with backend_on(frail_redis, **options) as backend:
            assert not (await backend.acquire(key, MINUTE_MS)).ok
            return await backend.is_locked(key)

    with redis.Redis(port=frail_redis.port, **options) as client:
        with RedisBackend(client) as blocking, RedisBackend.from_url(frail_redis.url) as plain:
            held = blocking.acquire(key, MINUTE_MS)
            assert held.ok
            assert plain.is_locked(key)
            assert asyncio.run(main())
            held.release()


def test_names_are_utf_8_on_a_mock_too():
    with fakeredis.FakeRedis(encoding="latin-1") as client:
        assert RedisBackend(client).acquire("schlüssel")
        assert client.exists("syncguard:schlüssel".encode())

    async def main():
        async with fakeredis.FakeAsyncRedis(encoding="latin-1") as client:
            assert await AsyncRedisBackend(client).acquire("schlüssel")
            return await client.exists("syncguard:schlüssel".encode())

    assert asyncio.run(main())


def test_closing_the_client_closes_the_connection(frail_redis):
    async def main():
        client = redis.asyncio.Redis(port=frail_redis.port)
        backend = AsyncRedisBackend(client)
        await backend.is_locked("k")
        await asyncio.wait_for(client.aclose(), 20)
        await wait_until_async(lambda: connections(frail_redis) == 0)

    asyncio.run(main())
