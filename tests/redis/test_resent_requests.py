"""A request whose reply was lost is sent again, and gets the same result as the first.

The server has executed the first one. Without special handling, the second acquire would be refused
by its own lock, and the second release would find no lock.
"""

from __future__ import annotations

import pytest
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard import LockError, generate_lock_id
from syncguard.redis import scripts


@pytest.fixture
def backend(backend_on, lossy_relay, request, client):
    """Retries once, as redis-py's default client does several times."""
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):  # else the lost reply could be NOSCRIPT
            client.script_load(script.text)
    kind = Retry if request.node.callspec.params["backend_on"] == "blocking" else AsyncRetry
    backend = backend_on(lossy_relay, client={"retry": kind(NoBackoff(), 1)})
    backend.is_locked("warm up: the connection's own commands are not to be lost")
    return backend


def test_a_resent_acquire_is_a_success_with_the_stored_fence(backend, lossy_relay, client):
    lossy_relay.lose_next_reply()
    lock = backend.acquire("k", 60_000)
    assert lossy_relay.lost.is_set()
    assert lock.ok
    assert lock.fence == "000000000000001"
    assert client.get("syncguard:fence:syncguard:k") == "1"
    assert backend.lookup(lock_id=lock.lock_id).expires_at_ms == lock.expires_at_ms


def test_a_resent_acquire_of_a_held_lock_is_refused(backend, lossy_relay):
    backend.acquire("k", 60_000)
    lossy_relay.lose_next_reply()
    assert not backend.acquire("k", 60_000).ok
    assert lossy_relay.lost.is_set()


def test_a_resent_release_is_a_success(backend, lossy_relay):
    lock = backend.acquire("k", 60_000)
    lossy_relay.lose_next_reply()
    assert backend.release(lock.lock_id).ok
    assert lossy_relay.lost.is_set()
    assert not backend.is_locked("k")


def test_a_resent_release_does_not_release_the_next_holder(backend, lossy_relay):
    lock = backend.acquire("k", 60_000)
    lock.release()
    other = backend.acquire("k", 60_000)
    lossy_relay.lose_next_reply()
    backend.release(lock.lock_id)
    assert backend.lookup(lock_id=other.lock_id) is not None


def test_a_resent_release_of_another_holders_lock_fails(backend, lossy_relay, client):
    backend.acquire("k", 60_000)
    mine = generate_lock_id()
    client.set(f"syncguard:id:{mine}", "syncguard:k")  # an index whose lock is gone
    lossy_relay.lose_next_reply()
    assert not backend.release(mine).ok
    assert backend.is_locked("k")


def test_a_resent_extend_is_a_success(backend, lossy_relay):
    lock = backend.acquire("k", 30_000)
    lossy_relay.lose_next_reply()
    assert backend.extend(lock.lock_id, 60_000).ok
    assert lossy_relay.lost.is_set()


def test_a_resent_adopt_is_a_success_with_the_same_new_lock_id(backend, lossy_relay):
    lock = backend.acquire("k", 60_000)
    lossy_relay.lose_next_reply()
    adopted = backend.adopt(lock.lock_id, 60_000)
    assert lossy_relay.lost.is_set()
    assert adopted.ok
    assert adopted.fence == lock.fence
    assert adopted.release().ok


def test_a_client_without_retries_resends_only_what_a_kept_connection_lost(backend_on, lossy_relay):
    """The pool has just checked a new connection, so its failure is a failure of the server."""
    backend = backend_on(lossy_relay, client={"max_connections": 4})  # so few that none is kept
    backend.is_locked("warm up")
    lossy_relay.lose_next_reply()
    with pytest.raises(LockError) as caught:
        backend.is_locked("k")
    assert caught.value.code == "ServiceUnavailable"
    assert lossy_relay.lost.is_set()


def test_a_release_that_failed_on_the_network_can_be_tried_again(
    backend_on, lossy_relay, syncguard_redis
):
    """A handle keeps its lock id after a fault, so the caller can retry."""
    backend = backend_on(lossy_relay)
    lock = backend.acquire("k", 60_000)
    lossy_relay.close()
    with pytest.raises(LockError) as caught:
        lock.release()
    assert caught.value.code == "ServiceUnavailable"
    assert backend_on(syncguard_redis).release(lock.lock_id).ok
