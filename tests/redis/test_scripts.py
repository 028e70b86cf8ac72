"""Scripts in the server: called by their SHA, and loaded again when the server lost them."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from syncguard import LockError
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import BlockingFacade, LoopThread, RedisServer


def calls(server, before, name):
    return server.commands_processed().get(name, 0) - before.get(name, 0)


def use(backend):
    """Every operation once."""
    lock = backend.acquire("k", 60_000)
    assert backend.is_locked("k")
    assert backend.lookup(key="k") == backend.lookup(lock_id=lock.lock_id)
    assert backend.extend(lock.lock_id, 60_000).ok
    adopted = backend.adopt(lock.lock_id, 60_000)
    assert len(backend.live_locks()) == backend.count_live_locks() == 1
    assert backend.release(adopted.lock_id).ok


def test_a_loaded_script_is_called_by_its_sha(syncguard_redis, backend):
    use(backend)
    before = syncguard_redis.commands_processed()
    use(backend)
    assert calls(syncguard_redis, before, "eval") == 0
    assert calls(syncguard_redis, before, "evalsha") > 0


def test_one_operation_is_one_round_trip(syncguard_redis, backend):
    use(backend)
    before = syncguard_redis.commands_processed()
    lock = backend.acquire("k", 60_000)
    backend.release(lock.lock_id)
    assert calls(syncguard_redis, before, "evalsha") == 2


def test_a_mutation_that_finds_no_lock_sends_no_further_request(syncguard_redis, backend):
    """The reason that telemetry shows is part of the reply."""
    lock = backend.acquire("k", 60_000)
    backend.release(lock.lock_id)
    backend.extend(lock.lock_id)
    before = syncguard_redis.commands_processed()
    assert backend.release(lock.lock_id).reason == "not-found"
    assert backend.extend(lock.lock_id).reason == "not-found"
    assert calls(syncguard_redis, before, "evalsha") == 2
    assert calls(syncguard_redis, before, "eval") == 0


def test_sequential_operations_share_one_connection(client, backend):
    use(backend)
    before = client.info("stats")["total_connections_received"]
    for _ in range(10):
        use(backend)
    assert client.info("stats")["total_connections_received"] == before


def test_no_connection_of_a_small_pool_is_kept(syncguard_redis):
    with syncguard_redis.client(max_connections=1) as client:
        assert RedisBackend(client).is_locked("k") is False
        assert client.ping()


def test_no_connection_of_a_small_asyncio_pool_is_kept(syncguard_redis):
    async def main():
        async with redis.asyncio.Redis(port=syncguard_redis.port, max_connections=1) as client:
            assert await AsyncRedisBackend(client).is_locked("k") is False
            assert await client.ping()

    asyncio.run(main())


def test_scripts_are_loaded_again_after_a_script_flush(client, backend):
    use(backend)
    client.script_flush()
    use(backend)


@pytest.mark.parametrize(
    "operation",
    [
        lambda b, _lock: b.acquire("other", 60_000).ok,
        lambda b, lock: b.release(lock.lock_id).ok,
        lambda b, lock: b.extend(lock.lock_id, 60_000).ok,
        lambda b, lock: b.adopt(lock.lock_id, 60_000).ok,
        lambda b, _lock: b.is_locked("k"),
        lambda b, _lock: b.lookup(key="k") is not None,
        lambda b, lock: b.lookup(lock_id=lock.lock_id) is not None,
        lambda b, _lock: len(b.live_locks()) == 1,
        lambda b, _lock: b.count_live_locks() == 1,
    ],
)
def test_every_operation_survives_a_script_flush(client, backend, operation):
    lock = backend.acquire("k", 60_000)
    client.script_flush()
    assert operation(backend, lock)


def test_locks_and_scripts_survive_a_restart_with_aof(backend_on):
    with RedisServer(aof=True) as server:
        backend = backend_on(server)
        lock = backend.acquire("k", 60_000)
        server.restart()
        assert backend.is_locked("k")
        assert backend.extend(lock.lock_id, 60_000).ok
        assert backend.release(lock.lock_id).ok


def test_a_client_without_retries_gets_no_error_after_a_restart(syncguard_redis, backend):
    use(backend)
    syncguard_redis.restart()
    use(backend)


# -- mocks ----------------------------------------------------------------------------------------


class OnlyEval:
    """A mock of Redis with one method, as users' tests often have."""

    def __init__(self, client):
        self.eval = client.eval


class OnlyAsyncEval:
    """The same for asyncio."""

    def __init__(self, client):
        self._client = client

    async def eval(self, *arguments):
        return await asyncio.to_thread(self._client.eval, *arguments)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_mock_that_has_only_eval_is_enough(syncguard_redis, kind):
    before = syncguard_redis.commands_processed()
    with syncguard_redis.client() as client:
        if kind == "blocking":
            use(RedisBackend(OnlyEval(client)))
        else:
            with LoopThread() as loop:
                use(BlockingFacade(AsyncRedisBackend(OnlyAsyncEval(client)), loop))
    assert calls(syncguard_redis, before, "evalsha") == 0
    assert calls(syncguard_redis, before, "eval") > 0


class WithoutScripts(OnlyEval):
    """A client with evalsha, such as a cluster's, on a server that has no script."""

    def __init__(self, client):
        super().__init__(client)
        self.asked = 0

    def evalsha(self, *_arguments):
        self.asked += 1
        raise redis.exceptions.NoScriptError("NOSCRIPT No matching script.")


def test_the_command_runner_falls_back_to_the_text_of_a_script(syncguard_redis):
    with syncguard_redis.client() as client:
        forgetful = WithoutScripts(client)
        use(RedisBackend(forgetful))
    assert forgetful.asked > 0


@pytest.mark.parametrize("decode_responses", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_every_client_setting_gives_the_same_results(make_backend, decode_responses, protocol):
    use(make_backend(client={"decode_responses": decode_responses, "protocol": protocol}))


def test_the_wrong_kind_of_client_is_refused(syncguard_redis):
    with syncguard_redis.client() as client, pytest.raises(LockError, match="asyncio") as caught:
        AsyncRedisBackend(client)
    assert caught.value.code == "InvalidArgument"
    with pytest.raises(LockError, match="AsyncRedisBackend"):
        RedisBackend(redis.asyncio.Redis())
