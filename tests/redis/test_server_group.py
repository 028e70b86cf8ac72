"""URLs of Sentinels and clusters: how they are parsed, and which clients they make. No server."""

from __future__ import annotations

import pytest
import redis
import redis.asyncio

from syncguard import LockError, backends
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.redis.server_group import parse_group
from syncguard.redis.undo_thread import undo_thread

BOTH = pytest.mark.parametrize("cls", [RedisBackend, AsyncRedisBackend])


def test_a_sentinel_url_has_parts():
    group = parse_group("rediss+sentinel://ann:s%2Fcret@h1:26380,[::1]/orders/3?socket_timeout=5")
    assert group.hosts == (("h1", 26380), ("::1", 26379))
    assert (group.kind, group.master, group.db) == ("sentinel", "orders", 3)
    assert (group.username, group.password) == ("ann", "s/cret")
    assert group.uses_tls
    assert group.url == "rediss+sentinel://h1:26380,[::1]:26379/orders?socket_timeout=5"
    assert str(group) == "rediss+sentinel://h1:26380,[::1]:26379/orders/3"


def test_a_cluster_url_has_parts():
    group = parse_group("redis+cluster://:pw@h1:7000,h2?password=other&db=0")
    assert group.hosts == (("h1", 7000), ("h2", 6379))
    assert (group.kind, group.master, group.db) == ("cluster", "", 0)
    assert (group.username, group.password) == (None, "other")
    assert not group.uses_tls
    assert str(group) == group.url == "redis+cluster://h1:7000,h2:6379"


def test_the_order_of_the_hosts_does_not_make_another_group():
    one = parse_group("redis+sentinel://h1,127.0.0.1/orders")
    assert one.server == parse_group("redis+sentinel://localhost,H1/orders").server
    assert one.server != parse_group("redis+sentinel://h1,localhost/bills").server
    assert one.is_remote
    assert not parse_group("redis+cluster://localhost,127.0.0.1:7001").is_remote


MALFORMED = [
    "redis+sentinel://",
    "redis+sentinel://h1:26379",
    "redis+sentinel://h1:26379/hunter2 x/0",
    "redis+sentinel://h1:26379/orders/hunter2",
    "redis+sentinel://h1:26379/orders/0/hunter2",
    "redis+sentinel://h1:hunter2/orders/0",
    "redis+sentinel://h1,/orders/0",
    "redis+sentinel://ann:12/hunter2@h1/orders",
    "redis+sentinel://ann:hunter2@@h1/orders#x",
    "redis+cluster://",
    "redis+cluster://h1:7000/0/hunter2",
    "redis+cluster://h1:7000/hunter2",
    "redis+cluster://h1:hunter2",
    "redis+cluster://h1:99999",
    "redis+cluster://[hunter2",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_is_refused_without_quoting_it(url):
    with pytest.raises(ValueError, match=r"^$") as raised:
        parse_group(url)
    assert raised.value.__suppress_context__
    for make in (RedisBackend.from_url, AsyncRedisBackend.from_url, backends.from_url):
        with pytest.raises(LockError, match=r"URL is malformed; .*redis\+sentinel://") as refused:
            make(url)
        assert refused.value.code == "InvalidArgument"
        assert "hunter2" not in f"{refused.value!r}{refused.value.__cause__!r}"


def test_the_repr_of_a_group_has_no_password():
    group = parse_group("redis+cluster://ann:hunter2@h1:7000?x=hunter2")
    assert "hunter2" not in f"{group!r} {group}"
    assert "h1" in repr(group)


# -- which clients they make ----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_sentinel_url_makes_a_client_of_the_master(cls, scheme):
    url = f"{scheme}+sentinel://ann:s%2Fcret@h1:26380,h2/orders/3?socket_timeout=5"
    backend = cls.from_url(url, sentinel_kwargs={"password": "theirs"})
    pool = backend._client.connection_pool
    settings = pool.connection_kwargs
    assert (settings["username"], settings["password"], settings["db"]) == ("ann", "s/cret", 3)
    assert settings["socket_timeout"] == 5
    assert ("SSL" in pool.connection_class.__name__) is (scheme == "rediss")
    for each in pool.sentinel_manager.sentinels:
        of_sentinel = each.connection_pool.connection_kwargs
        assert of_sentinel["password"] == "theirs"
        assert of_sentinel["socket_timeout"] == 1.0
        assert ("SSL" in each.connection_pool.connection_class.__name__) is (scheme == "rediss")
    server = "the Sentinel service 'orders' of h1:26380, h2:26379, database 3"
    assert repr(backend) == f"{cls.__name__}(key_prefix='syncguard', server={server!r})"


@BOTH
def test_a_cluster_url_makes_a_client_of_the_cluster_without_connecting(cls):
    backend = cls.from_url("rediss+cluster://ann:hunter2@h1.invalid:7000,h2.invalid")
    assert isinstance(backend._client, redis.RedisCluster | redis.asyncio.RedisCluster)
    server = "the cluster of h1.invalid:7000, h2.invalid:6379"
    assert repr(backend) == f"{cls.__name__}(key_prefix='syncguard', server={server!r})"


@BOTH
@pytest.mark.parametrize("url", ["redis+cluster://h1/1", "redis+cluster://h1?db=1"])
def test_a_cluster_has_no_other_database(cls, url):
    with pytest.raises(LockError, match="a Redis cluster has only database 0"):
        cls.from_url(url)
    with pytest.raises(LockError, match="a Redis cluster has only database 0"):
        cls.from_url("redis+cluster://h1", db=1)
    cls.from_url("redis+cluster://h1/0", db=0)


@BOTH
@pytest.mark.parametrize("url", ["redis+cluster://h1", "redis+sentinel://h1/orders"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sokcet_timeout": 1}, "the client option sokcet_timeout is unknown to redis-py"),
        ({"socket_timeout": "1"}, "the client option socket_timeout must be a number of seconds"),
        ({"ssl": "yes"}, "the client option ssl must be True or False"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(cls, url, options, expected):
    with pytest.raises(LockError, match=expected) as refused:
        cls.from_url(url, **options)
    assert refused.value.code == "InvalidArgument"


@BOTH
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hunter2", "sentinel_kwargs must be a dictionary"),
        ({"pasword": "hunter2"}, "the client option pasword is unknown to redis-py"),
        ({"socket_timeout": "hunter2"}, "socket_timeout must be a number of seconds"),
    ],
)
def test_a_wrong_option_for_the_sentinels_is_refused(cls, given, expected):
    with pytest.raises(LockError, match=expected) as refused:
        cls.from_url("redis+sentinel://h1/orders", sentinel_kwargs=given)
    assert "hunter2" not in repr(refused.value)


def test_a_cluster_that_cannot_be_reached_is_named_without_credentials():
    url = "redis+cluster://zoe:hunter2@127.0.0.1:1,127.0.0.1:2"
    with RedisBackend.from_url(url) as backend, pytest.raises(LockError) as raised:
        backend.acquire("k")
    assert raised.value.code == "ServiceUnavailable"
    assert str(raised.value).startswith("Redis at the cluster of 127.0.0.1:1, 127.0.0.1:2, cannot")
    assert "hunter2" not in f"{raised.value!r}{raised.value.__cause__!r}"
    assert "zoe" not in str(raised.value)


def test_sentinels_that_cannot_be_reached_are_named_without_credentials():
    url = "redis+sentinel://zoe:hunter2@127.0.0.1:1,127.0.0.1:2/orders/0"
    options = {"sentinel_kwargs": {"password": "hunter2"}}
    with RedisBackend.from_url(url, **options) as backend, pytest.raises(LockError) as raised:
        backend.acquire("k")
    assert raised.value.code == "ServiceUnavailable"
    place = "the Sentinel service 'orders' of 127.0.0.1:1, 127.0.0.1:2, database 0"
    assert str(raised.value).startswith(f"Redis at {place}, cannot be reached")
    assert "hunter2" not in f"{raised.value!r}{raised.value.__cause__!r}"
    assert "zoe" not in str(raised.value)


def test_nothing_is_undone_if_the_nodes_of_a_cluster_cannot_be_found():
    """The request was never sent. An undo would try for as long as the lock could have lived."""
    with RedisBackend.from_url("redis+cluster://127.0.0.1:1") as backend:
        before = undo_thread.pending
        with pytest.raises(LockError):
            backend.acquire("k", ttl_ms=60_000)
        assert undo_thread.pending == before
