"""A request whose reply was lost is sent again, and answers as the first would have.

The server has carried the first one out. Were the second an ordinary request, an acquire would
meet its own lock as somebody else's, and a release would find nothing.
"""

from __future__ import annotations

import pytest
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard import LockError, generate_lock_id
from syncguard.redis import scripts


@pytest.fixture
def backend(backend_on, wiretap, request, client):
    """Retries once, as redis-py's default client does several times."""
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):  # or the lost reply would be that it is unknown
            client.script_load(script.text)
    kind = Retry if request.node.callspec.params["backend_on"] == "blocking" else AsyncRetry
    backend = backend_on(wiretap, client={"retry": kind(NoBackoff(), 1)})
    backend.is_locked("warm up: the connection's own commands are not to be lost")
    return backend


def test_a_resent_acquire_is_a_success_with_the_stored_fence(backend, wiretap, client):
    wiretap.lose_next_reply()
    lock = backend.acquire("k", 60_000)
    assert wiretap.lost.is_set()
    assert lock.ok
    assert lock.fence == "000000000000001"
    assert client.get("syncguard:fence:syncguard:k") == "1"
    assert backend.lookup(lock_id=lock.lock_id).expires_at_ms == lock.expires_at_ms


def test_a_resent_acquire_of_a_held_lock_is_refused(backend, wiretap):
    backend.acquire("k", 60_000)
    wiretap.lose_next_reply()
    assert not backend.acquire("k", 60_000).ok
    assert wiretap.lost.is_set()


def test_a_resent_release_is_a_success(backend, wiretap):
    lock = backend.acquire("k", 60_000)
    wiretap.lose_next_reply()
    assert backend.release(lock.lock_id).ok
    assert wiretap.lost.is_set()
    assert not backend.is_locked("k")


def test_a_resent_release_does_not_release_the_next_holder(backend, wiretap):
    lock = backend.acquire("k", 60_000)
    lock.release()
    other = backend.acquire("k", 60_000)
    wiretap.lose_next_reply()
    backend.release(lock.lock_id)
    assert backend.lookup(lock_id=other.lock_id) is not None


def test_a_resent_release_of_another_holders_lock_fails(backend, wiretap, client):
    backend.acquire("k", 60_000)
    mine = generate_lock_id()
    client.set(f"syncguard:id:{mine}", "syncguard:k")  # an index that outlived its lock
    wiretap.lose_next_reply()
    assert not backend.release(mine).ok
    assert backend.is_locked("k")


def test_a_resent_extend_is_a_success(backend, wiretap):
    lock = backend.acquire("k", 30_000)
    wiretap.lose_next_reply()
    assert backend.extend(lock.lock_id, 60_000).ok
    assert wiretap.lost.is_set()


def test_a_resent_adopt_is_a_success_with_the_same_new_lock_id(backend, wiretap):
    lock = backend.acquire("k", 60_000)
    wiretap.lose_next_reply()
    adopted = backend.adopt(lock.lock_id, 60_000)
    assert wiretap.lost.is_set()
    assert adopted.ok
    assert adopted.fence == lock.fence
    assert adopted.release().ok


def test_a_client_without_retries_resends_only_what_a_kept_connection_lost(backend_on, wiretap):
    """One that has just come from the pool was alive: then it is the server that fails."""
    backend = backend_on(wiretap, client={"max_connections": 4})  # so few that none is kept
    backend.is_locked("warm up")
    wiretap.lose_next_reply()
    with pytest.raises(LockError) as caught:
        backend.is_locked("k")
    assert caught.value.code == "ServiceUnavailable"
    assert wiretap.lost.is_set()


def test_a_release_that_failed_on_the_network_can_be_tried_again(
    backend_on, wiretap, syncguard_redis
):
    """A handle keeps its lock id, so the caller loses nothing by a fault."""
    backend = backend_on(wiretap)
    lock = backend.acquire("k", 60_000)
    wiretap.close()
    with pytest.raises(LockError) as caught:
        lock.release()
    assert caught.value.code == "ServiceUnavailable"
    assert backend_on(syncguard_redis).release(lock.lock_id).ok
