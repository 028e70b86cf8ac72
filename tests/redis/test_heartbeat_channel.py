"""The heartbeat's own connection: many locks in one script call, and each gets its own answer."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import ClassVar

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.retry import Retry
from wait_until import wait_until

from syncguard.errors import LockError, ServiceUnavailable
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.script_calls import Calls
from syncguard.redis.scripts import EXTEND

SHORT_MS, LONG_MS = 600_000, 6_000_000
NOBODY_LISTENS = 1
"""A port."""


@pytest.fixture
def backend(syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url) as blocking:
        yield blocking


@pytest.fixture
def channel(backend):
    opened = backend.open_extend_channel(60_000)
    yield opened
    opened.close()


def answers_of(channel, number):
    """Receive until this many answers arrived."""
    answers = []

    def arrived():
        if channel._expected:
            answers.extend(channel.receive())
        return len(answers) >= number

    wait_until(arrived)
    return answers


def test_a_script_flush_is_not_reported_as_a_failure(client, backend, channel):
    ids = [backend.acquire(f"k{n}", SHORT_MS).lock_id for n in range(3)]
    channel.send([(ids[0], SHORT_MS)])
    assert [answer.ok for answer in answers_of(channel, 1)] == [True]
    client.script_flush()
    channel.send([(lock_id, LONG_MS) for lock_id in ids])
    assert [answer.ok for answer in answers_of(channel, 3)] == [True] * 3


def test_answers_keep_their_order_though_one_extension_was_sent_again(client, backend, channel):
    """Another client loads the script in between: the second extension is not repeated."""
    first, second = (backend.acquire(key, SHORT_MS).lock_id for key in ("first", "second"))
    channel.send([(first, SHORT_MS)])
    answers_of(channel, 1)
    client.script_flush()
    calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    channel.send([(first, SHORT_MS)])
    wait_until(lambda: client.info("commandstats")["cmdstat_evalsha"]["calls"] > calls)
    client.script_load(EXTEND.text)
    channel.send([(second, LONG_MS), (second, SHORT_MS)])
    one, two, three = (answer.expires_at_ms for answer in answers_of(channel, 3))
    assert two - one > LONG_MS / 2
    assert two - three > LONG_MS / 2


def test_an_extension_of_a_lost_lock_keeps_its_answer_after_a_script_flush(
    client, backend, channel
):
    lock_id = backend.acquire("k", SHORT_MS).lock_id
    channel.send([(lock_id, SHORT_MS)])
    answers_of(channel, 1)
    backend.release(lock_id)
    client.script_flush()
    channel.send([(lock_id, SHORT_MS)])
    (answer,) = answers_of(channel, 1)
    assert (answer.ok, answer.reason) == (False, "not-found")


def test_asyncio_a_script_flush_is_not_reported_as_a_failure(syncguard_redis, client):
    async def run():
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            ids = [(await backend.acquire(f"k{n}", SHORT_MS)).lock_id for n in range(3)]
            channel = await backend.open_extend_channel(60_000)
            await channel.extend([(ids[0], SHORT_MS)])
            client.script_flush()
            answers = await channel.extend([(lock_id, LONG_MS) for lock_id in ids])
            await channel.close()
            return answers

    assert [answer.ok for answer in asyncio.run(run())] == [True] * 3


# -- connecting -----------------------------------------------------------------------------------


class RecordedBackoff(ExponentialBackoff):
    """Records after which failures the client retries."""

    failures: ClassVar[list[int]] = []  # of the class: each connection copies its retry policy

    def compute(self, failures):
        self.failures.append(failures)
        return 0


@pytest.fixture
def failures_before_a_retry():
    RecordedBackoff.failures.clear()
    return RecordedBackoff.failures


@pytest.fixture
def refusing_port():
    """A port on which no server listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_a_heartbeat_connects_without_the_retries_of_the_client(
    refusing_port, failures_before_a_retry
):
    """The heartbeat retries by its own schedule: the pauses of the client would delay a beat."""
    retry = Retry(RecordedBackoff(), 10)
    with redis.Redis(port=refusing_port, retry=retry) as client, RedisBackend(client) as backend:
        with pytest.raises(ServiceUnavailable):
            backend.open_extend_channel(60_000)
        assert failures_before_a_retry == []
        with pytest.raises(ServiceUnavailable):
            backend.is_locked("k")
        assert failures_before_a_retry, "other calls use the retries"


def test_asyncio_a_heartbeat_connects_without_the_retries_of_the_client(
    refusing_port, failures_before_a_retry
):
    async def main():
        retry = AsyncRetry(RecordedBackoff(), 10)
        async with (
            redis.asyncio.Redis(port=refusing_port, retry=retry) as client,
            AsyncRedisBackend(client) as backend,
        ):
            with pytest.raises(ServiceUnavailable):
                await backend.open_extend_channel(60_000)
            assert failures_before_a_retry == []
            with pytest.raises(ServiceUnavailable):
                await backend.is_locked("k")
            assert failures_before_a_retry, "other calls use the retries"

    asyncio.run(main())


# -- many locks in one script call ----------------------------------------------------------------


def script_calls(client):
    stats = client.info("commandstats")
    return sum(
        stats[name]["calls"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats
    )


@pytest.fixture(params=["blocking", "asyncio"])
def extend_all(request, syncguard_redis, backend):
    """Extends locks on a heartbeat channel, and returns the answers."""

    def blocking(extensions):
        channel = backend.open_extend_channel(60_000)
        channel.send(extensions)
        answers = answers_of(channel, len(extensions))
        channel.close()
        return answers

    def with_asyncio(extensions):
        async def run():
            async with AsyncRedisBackend.from_url(syncguard_redis.url) as asynchronous:
                channel = await asynchronous.open_extend_channel(60_000)
                answers = await channel.extend(extensions)
                await channel.close()
                return answers

        return asyncio.run(run())

    return blocking if request.param == "blocking" else with_asyncio


def test_up_to_32_locks_are_extended_in_one_script_call(client, backend, extend_all):
    locks = [backend.acquire(f"k{n}", SHORT_MS) for n in range(65)]
    before = script_calls(client)
    answers = extend_all([(lock.lock_id, LONG_MS) for lock in locks])
    assert script_calls(client) - before == 3
    for lock, answer in zip(locks, answers, strict=True):
        assert answer.expires_at_ms - lock.expires_at_ms > LONG_MS / 2
        assert backend.lookup(lock_id=lock.lock_id).expires_at_ms == answer.expires_at_ms


def test_each_lock_of_a_call_has_its_own_ttl_and_answer(backend, extend_all):
    short, released, long = (backend.acquire(key, SHORT_MS).lock_id for key in "abc")
    backend.release(released)
    first, second, third = extend_all([(short, SHORT_MS), (released, SHORT_MS), (long, LONG_MS)])
    assert third.expires_at_ms - first.expires_at_ms == LONG_MS - SHORT_MS
    assert (second.ok, second.reason) == (False, "not-found")


def test_a_lock_its_index_and_the_list_of_live_locks_get_the_new_expiry(
    client, backend, extend_all
):
    ids = [backend.acquire(f"k{n}", SHORT_MS).lock_id for n in range(3)]
    answers = extend_all([(lock_id, LONG_MS) for lock_id in ids])
    for n, (lock_id, answer) in enumerate(zip(ids, answers, strict=True)):
        assert SHORT_MS < client.pttl(f"syncguard:k{n}") <= LONG_MS
        assert SHORT_MS < client.pttl(f"syncguard:id:{lock_id}") <= LONG_MS
        assert client.zscore("syncguard:id::live", f"syncguard:k{n}") == answer.expires_at_ms


@pytest.mark.parametrize("record", ["not JSON", '{"lockId":'], ids=["text", "cut"])
def test_a_record_that_cannot_be_read_fails_no_other_lock_of_its_call(
    client, backend, extend_all, record
):
    ids = [backend.acquire(key, SHORT_MS).lock_id for key in "abc"]
    client.set("syncguard:b", record, keepttl=True)
    first, second, third = extend_all([(lock_id, LONG_MS) for lock_id in ids])
    assert isinstance(second, LockError)
    assert (first.ok, third.ok) == (True, True)


def test_a_replica_extends_nothing_and_the_channel_reports_that_it_does_not_serve(
    client, backend, extend_all
):
    ids = [backend.acquire(key, LONG_MS).lock_id for key in "abc"]
    client.replicaof("127.0.0.1", NOBODY_LISTENS)  # so it keeps its locks
    try:
        with pytest.raises(LockError) as caught:
            extend_all([(lock_id, LONG_MS) for lock_id in ids])
    finally:
        client.replicaof("NO", "ONE")
    assert caught.value.code == "ServiceUnavailable"


# -- the record is changed as text where that is safe ---------------------------------------------


def record_of(client, key):
    return json.loads(client.get(f"syncguard:{key}"))


@pytest.mark.parametrize(
    "key",
    ["plain", 'x","expiresAtMs":1,"y', ',"expiresAtMs":1}', 'a\\","lockId":"' + "A" * 22 + '"'],
)
def test_an_extension_changes_only_the_expiry_whatever_the_key_contains(
    client, backend, extend_all, key
):
    lock_id = backend.acquire(key, SHORT_MS, holder=key).lock_id
    before = record_of(client, key)
    (answer,) = extend_all([(lock_id, LONG_MS)])
    assert record_of(client, key) == {**before, "expiresAtMs": answer.expires_at_ms}


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda record: json.dumps(record),
        lambda record: json.dumps(dict(sorted(record.items())), separators=(",", ":")),
        lambda record: json.dumps({**record, "expiresAtMs": record["expiresAtMs"] + 0.5}),
        lambda record: json.dumps({"in": {"expiresAtMs": 1}, **record}, separators=(",", ":")),
    ],
    ids=["with spaces", "another order", "a fraction", "a nested field of this name"],
)
def test_a_record_that_another_client_wrote_is_extended_too(client, backend, extend_all, rewrite):
    lock_id = backend.acquire("k", SHORT_MS).lock_id
    before = record_of(client, "k")
    client.set("syncguard:k", rewrite(before), keepttl=True)
    (answer,) = extend_all([(lock_id, LONG_MS)])
    after = record_of(client, "k")
    assert answer.ok
    assert {name: after[name] for name in before} == {
        **before,
        "expiresAtMs": answer.expires_at_ms,
    }


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "with spaces"])
def test_the_lock_of_another_holder_is_not_extended(client, backend, extend_all, separators):
    lock_id = backend.acquire("k", SHORT_MS).lock_id
    other = {**record_of(client, "k"), "lockId": "B" * 22}
    client.set("syncguard:k", json.dumps(other, separators=separators), keepttl=True)
    (answer,) = extend_all([(lock_id, LONG_MS)])
    assert (answer.ok, answer.reason) == (False, "not-found")
    assert record_of(client, "k") == other


def test_a_lock_that_has_expired_by_the_servers_clock_is_not_revived(client, backend, extend_all):
    lock_id = backend.acquire("k", SHORT_MS).lock_id
    expired = {**record_of(client, "k"), "expiresAtMs": 1}
    client.set("syncguard:k", json.dumps(expired, separators=(",", ":")), keepttl=True)
    (answer,) = extend_all([(lock_id, LONG_MS)])
    assert (answer.ok, answer.reason) == (False, "expired")
    assert record_of(client, "k") == expired


def test_bad_input_is_refused_before_anything_is_sent(client, backend, extend_all):
    lock_id = backend.acquire("k", SHORT_MS).lock_id
    before = script_calls(client)
    for bad in (("no id", SHORT_MS), (lock_id, 0)):
        with pytest.raises(LockError) as caught:
            extend_all([(lock_id, SHORT_MS), bad])
        assert caught.value.code == "InvalidArgument"
    assert script_calls(client) == before


def test_on_a_cluster_one_call_extends_the_locks_of_one_bucket():
    from syncguard.redis.heartbeat_channel import _Batches, _Pending

    calls = Calls(clustered=True)
    ids = ["A" * 22, "B" * 22, "A" * 21 + "C", "B" * 21 + "C"]
    batches = _Batches(calls).of([_Pending((lock_id, 1_000)) for lock_id in ids])
    assert [batch.call.args[::2] for batch in batches] == [(ids[0], ids[2]), (ids[1], ids[3])]
    for batch in batches:
        assert len({name[: name.index("}")] for name in batch.call.keys}) == 1
