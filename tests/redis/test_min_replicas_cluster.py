"""``min_replicas`` on a cluster: WAIT goes to the node of the lock, on the script's connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from cluster_servers import ClusterServers
from redis.crc import key_slot
from wait_until import wait_until

from syncguard import ServiceUnavailable, generate_lock_id
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.names import Names
from syncguard.redis.undo_thread import undo_thread
from syncguard.testing import BlockingFacade, LoopThread

pytestmark = pytest.mark.slow

LONG_MS = 600_000


@pytest.fixture(scope="module")
def servers() -> Iterator[ClusterServers]:
    with ClusterServers(with_replica=True, node_timeout_ms=5_000) as started:
        yield started


@pytest.fixture(params=["blocking", "asyncio"])
def on_cluster(request, servers):
    """Makes backends on the cluster, with one blocking interface."""
    settings = {"host": "127.0.0.1", "port": servers.port, "socket_timeout": 65}
    with contextlib.ExitStack() as stack:
        if request.param == "blocking":
            client = stack.enter_context(redis.RedisCluster(**settings))
            yield lambda **options: RedisBackend(client, **options)
            return
        loop = stack.enter_context(LoopThread())
        client = redis.asyncio.RedisCluster(**settings)
        stack.callback(lambda: loop.run(client.aclose()))
        loop.run(client.initialize())
        yield lambda **options: BlockingFacade(AsyncRedisBackend(client, **options), loop)


@pytest.fixture
def key():
    """All tests use one cluster."""
    return generate_lock_id()


@pytest.fixture
def backend(on_cluster):
    return on_cluster(min_replicas=1, replica_timeout_ms=60_000)


def name_of(key: str) -> str:
    return Names("syncguard", clustered=True).of(key).lock


def slot_of(key: str) -> int:
    slot: int = key_slot(name_of(key).encode())
    return slot


def test_locks_are_confirmed_by_the_replica_of_their_node(backend, servers, key):
    servers.forget_scripts()
    for n in range(5):
        one = f"{key}-{n}"
        held = backend.acquire(one, LONG_MS)
        assert held.ok
        assert not backend.acquire(one, LONG_MS).ok
        assert servers.replica_has(name_of(one))
        assert backend.extend(held.lock_id, LONG_MS).ok
        adopted = backend.adopt(held.lock_id, LONG_MS)
        assert adopted.ok
        assert backend.release(adopted.lock_id).ok


def test_a_lock_that_the_replica_does_not_confirm_is_released(on_cluster, servers, key):
    backend = on_cluster(min_replicas=1, replica_timeout_ms=50)
    with servers.replica_paused():
        with pytest.raises(ServiceUnavailable, match="only 0 of 1 replicas"):
            backend.acquire(key, LONG_MS)
        wait_until(lambda: undo_thread.pending == 0)
        assert not backend.is_locked(key)
    wait_until(servers.is_settled)


def test_a_lock_is_confirmed_by_the_node_that_took_over(backend, servers, key):
    assert backend.acquire(key, LONG_MS).ok
    servers.fail_over_by_command()
    after = backend.acquire(f"{key}-after", LONG_MS)
    assert after.ok
    assert servers.replica_has(name_of(f"{key}-after"))
    assert backend.extend(after.lock_id, LONG_MS).ok
    assert not backend.acquire(key, LONG_MS).ok


def test_a_lock_is_confirmed_where_its_slot_is_now(backend, on_cluster, servers, key):
    """The node that gets the slot has no replica: it confirms nothing."""
    held = backend.acquire(key, LONG_MS)
    assert held.ok
    servers.migrate(slot_of(key))
    impatient = on_cluster(min_replicas=1, replica_timeout_ms=50)
    with pytest.raises(ServiceUnavailable, match="only 0 of 1 replicas"):
        impatient.extend(held.lock_id, LONG_MS)
    assert not impatient.acquire(key, LONG_MS).ok
    servers.migrate(slot_of(key))
    wait_until(lambda: extends(impatient, held.lock_id))


def extends(backend, lock_id: str) -> bool:
    with contextlib.suppress(ServiceUnavailable):
        return backend.extend(lock_id, LONG_MS).ok
    return False


def test_while_a_slot_moves_its_locks_are_not_available(on_cluster, servers, key):
    """Redis then executes no script with several keys, of which one is missing."""
    backend = on_cluster(min_replicas=1, replica_timeout_ms=5_000)
    with servers.moving(slot_of(key)), pytest.raises(ServiceUnavailable):
        backend.acquire(key, LONG_MS)
    wait_until(lambda: undo_thread.pending == 0)
    assert backend.acquire(key, LONG_MS).ok
