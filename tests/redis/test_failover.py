"""A failover behind one address: the old primary is a replica now, and closes no connection.

New connections reach the new primary. The old ones always answer READONLY, so the client has to
close them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry
from relay import Relay
from wait_until import wait_until, wait_until_async

from syncguard import LockError, aio, lock
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing import RedisServer

pytestmark = pytest.mark.slow


class Pair(Relay):
    """A primary and its replica behind one address."""

    def __init__(self, old: RedisServer, new: RedisServer) -> None:
        super().__init__(old.port)
        self.new_port = new.port
        self.old, self.new = old.client(), new.client()
        self.new.replicaof(self.host, old.port)
        wait_for_link(self.new)

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def demote(self) -> None:
        """Change the roles. The address still belongs to the old primary."""
        self._change_roles()
        wait_for_link(self.old)

    def fail_over(self) -> None:
        self._change_roles()
        self.connect_to(self.new_port)
        wait_for_link(self.old)

    def _change_roles(self) -> None:
        assert self.old.wait(1, 20_000) == 1  # the replica has all data
        self.new.replicaof("NO", "ONE")
        self.old.replicaof(self.host, self.new_port)

    def close(self) -> None:
        super().close()
        self.old.close()
        self.new.close()


def wait_for_link(replica: redis.Redis) -> None:
    wait_until(lambda: replica.info("replication")["master_link_status"] == "up", 60)


@pytest.fixture
def pair() -> Iterator[Pair]:
    at_once = ["repl-diskless-sync-delay 0"]
    with RedisServer(config=at_once) as old, RedisServer(config=at_once) as new:
        with Pair(old, new) as made:
            yield made


@pytest.mark.parametrize("size", [2, 100], ids=["small", "roomy"])
def test_the_connection_to_a_demoted_server_is_closed_at_once(backend_on, pair, size):
    """Also if the client never retries, and for connections that we or the pool keep."""
    backend = backend_on(pair, client={"max_connections": size})
    held = backend.acquire("before", 60_000)
    pair.fail_over()
    assert backend.acquire("after", 60_000).ok
    assert backend.release(held.lock_id).ok
    assert pair.new.exists("syncguard:after") == 1


class FailsOverOnRetry(NoBackoff):
    """Connects to the new primary only after the policy's delay before a retry."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def __deepcopy__(self, _memo: object) -> FailsOverOnRetry:
        return self  # redis-py copies the policy for each connection

    def compute(self, _failures: int) -> float:
        self._pair.connect_to(self._pair.new_port)
        return 0


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_further_retries_follow_the_clients_policy(request, backend_on, pair, named):
    kind = Retry if request.node.callspec.params["backend_on"] == "blocking" else AsyncRetry
    policy = {
        "retry": kind(FailsOverOnRetry(pair), 1),
        "retry_on_error": [ReadOnlyError] if named else [],
    }
    backend = backend_on(pair, client=policy)
    assert backend.acquire("before", 60_000).ok
    pair.demote()
    if named:
        assert backend.acquire("after", 60_000).ok
    else:
        with pytest.raises(LockError):
            backend.acquire("after", 60_000)


def test_a_replica_is_reported_until_a_new_primary_can_be_reached(backend_on, pair):
    backend = backend_on(pair)
    assert backend.acquire("before", 60_000).ok
    pair.demote()
    for _ in range(2):
        with pytest.raises(LockError) as caught:
            backend.acquire("after", 60_000)
        assert caught.value.code == "ServiceUnavailable"
    pair.connect_to(pair.new_port)
    assert backend.acquire("after", 60_000).ok


def test_a_rejected_release_that_is_sent_again_is_not_assumed_to_be_done(backend_on, pair):
    """The rejected request did nothing. If the lock is gone, another client removed it."""
    backend = backend_on(pair)
    held = backend.acquire("k", 60_000)
    unused_port = 1  # so the demoted one keeps what it has
    pair.old.replicaof(pair.host, unused_port)
    pair.new.replicaof("NO", "ONE")
    pair.new.flushall()
    pair.connect_to(pair.new_port)
    assert not backend.release(held.lock_id).ok


def test_a_heartbeat_connects_to_the_new_primary(pair):
    with RedisBackend.from_url(pair.url) as backend:
        with lock(backend, "k", ttl_ms=12_000, auto_extend=True) as held:
            first = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > first, 60)  # it uses the old primary
            pair.fail_over()
            before = held.expires_at_ms
            wait_until(lambda: held.expires_at_ms > before or held.lost, 60)
            assert not held.lost
        assert not backend.is_locked("k")


def test_an_asyncio_heartbeat_connects_to_the_new_primary(pair):
    async def main() -> None:
        async with AsyncRedisBackend.from_url(pair.url) as backend:
            async with aio.lock(backend, "k", ttl_ms=12_000, auto_extend=True) as held:
                first = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > first, 60)
                await asyncio.to_thread(pair.fail_over)
                before = held.expires_at_ms
                await wait_until_async(lambda: held.expires_at_ms > before or held.lost, 60)
                assert not held.lost
            assert not await backend.is_locked("k")

    asyncio.run(main())
