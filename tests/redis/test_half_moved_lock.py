"""A lock whose slot moves to another node of a cluster: its index is on one, the lock on the other.

Redis moves the names of a slot one after the other. Scripts name the index and the list of live
locks, but not the lock, which they learn from the index. So Redis executes them where those two
are. The scripts run here on one server, with the names of a cluster; ``test_heartbeat_cluster``
has the same on a real one.
"""

from __future__ import annotations

import pytest
import redis

from syncguard.redis.script_calls import Calls

LONG_MS = 60_000


@pytest.fixture
def client(syncguard_redis):
    with syncguard_redis.client() as client:
        yield client


@pytest.fixture
def run(client):
    return lambda call: client.eval(call.script.text, len(call.keys), *call.keys, *call.args)


def acquired(calls, run):
    """A lock: its id, and its name in Redis."""
    acquire = calls.acquire("k", LONG_MS, None)
    run(acquire)
    return acquire.lock_id, calls.names.of("k").lock


def stored(client):
    return {name: client.dump(name) for name in client.scan_iter()}


def calls_by_id(calls, lock_id):
    return {
        "release": calls.release(lock_id),
        "extend": calls.extend(lock_id, LONG_MS),
        "adopt": calls.adopt(lock_id, LONG_MS, None),
        "lookup": calls.lookup(None, lock_id),
        "undo": calls.undo(lock_id),
    }


NOT_FOUND = {"release": -1, "extend": [-1], "adopt": -1, "lookup": None, "undo": 0}
OPERATIONS = pytest.mark.parametrize("operation", NOT_FOUND)


@OPERATIONS
def test_nothing_is_said_of_a_lock_that_is_still_on_the_other_node(client, run, operation):
    calls = Calls(clustered=True)
    lock_id, name = acquired(calls, run)
    record = client.dump(name)
    client.delete(name)
    before = sorted(client.keys())
    with pytest.raises(redis.exceptions.TryAgainError):
        run(calls_by_id(calls, lock_id)[operation])
    assert sorted(client.keys()) == before, "the index stays"
    client.restore(name, LONG_MS, record)
    assert run(calls.release(lock_id)) == 1


@OPERATIONS
def test_a_lock_without_its_index_is_not_found(client, run, operation):
    calls = Calls(clustered=True)
    lock_id, name = acquired(calls, run)
    client.delete(name, calls.names.index(lock_id))
    assert run(calls_by_id(calls, lock_id)[operation]) == NOT_FOUND[operation]


@OPERATIONS
def test_a_lock_that_was_undone_is_not_found(run, operation):
    calls = Calls(clustered=True)
    lock_id, _name = acquired(calls, run)
    run(calls.undo(lock_id))
    assert run(calls_by_id(calls, lock_id)[operation]) == NOT_FOUND[operation]


@OPERATIONS
def test_on_one_server_a_lock_that_is_gone_is_not_found(client, run, operation):
    calls = Calls()
    lock_id, name = acquired(calls, run)
    client.delete(name)
    assert run(calls_by_id(calls, lock_id)[operation]) == NOT_FOUND[operation]


@pytest.mark.parametrize("clustered", [False, True])
@OPERATIONS
def test_an_error_that_has_another_cause_is_raised(client, run, operation, clustered):
    calls = Calls(clustered=clustered)
    lock_id, name = acquired(calls, run)
    client.delete(name)
    client.rpush(name, "of another application")
    before = stored(client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(calls_by_id(calls, lock_id)[operation])
    assert stored(client) == before


@pytest.mark.parametrize(("clustered", "entries"), [(False, 0), (True, 1)])
def test_the_list_keeps_the_entry_of_a_lock_that_may_be_on_the_other_node(
    client, run, clustered, entries
):
    calls = Calls(clustered=clustered)
    lock_id, name = acquired(calls, run)
    client.delete(name)
    space = calls.names.space_of(lock_id)
    assert run(calls.live_locks(space, 0, 10))[2:] == [[None] * entries, entries]
    assert run(calls.walk(space, "0", []))[3] == []
    assert client.zcard(space.live) == entries


@pytest.mark.parametrize("clustered", [False, True])
def test_the_list_raises_an_error_that_has_another_cause(client, run, clustered):
    calls = Calls(clustered=clustered)
    lock_id, _ = acquired(calls, run)
    space = calls.names.space_of(lock_id)
    before = stored(client)
    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-mget"])
    try:
        client.execute_command("AUTH", "reader", "any")
        for call in (calls.live_locks(space, 0, 10), calls.walk(space, "0", [])):
            with pytest.raises(redis.ResponseError, match="The user executing the script"):
                run(call)
    finally:
        client.execute_command("AUTH", "default", "any")
        client.acl_deluser("reader")
    assert stored(client) == before
