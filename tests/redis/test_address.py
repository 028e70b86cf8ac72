"""Parses the address of a Redis; an invalid one is refused without being quoted."""

from __future__ import annotations

import pytest

from syncguard.redis.address import parse


def test_an_address_has_parts():
    address = parse("rediss://ann:s%2Fcret@redis.example:6380/3?socket_timeout=5")
    assert address.url == "rediss://redis.example:6380?socket_timeout=5"
    assert (address.db, address.username, address.password) == (3, "ann", "s/cret")
    assert address.uses_tls


def test_a_bare_address_is_the_local_redis():
    address = parse("redis://")
    assert (address.url, address.db, address.password) == ("redis://localhost:6379", 0, None)
    assert not address.is_remote


def test_a_unix_socket_has_a_path_and_is_never_remote():
    address = parse("unix:///run/redis.sock?db=2&password=hunter2")
    assert (address.url, address.db, address.password) == ("unix:///run/redis.sock", 2, "hunter2")
    assert not address.is_remote
    assert str(address) == "unix:///run/redis.sock?db=2"


def test_an_ipv6_host_keeps_its_brackets():
    assert parse("redis://[::1]:7000/1").url == "redis://[::1]:7000"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST.", "[::1]", "127.1.2.3"])
def test_every_loopback_name_is_the_same_server(host):
    assert parse(f"redis://{host}").server == parse("redis://localhost").server


def test_two_hosts_are_two_servers():
    one, other = parse("redis://10.0.0.1"), parse("redis://10.0.0.2")
    assert one.server != other.server
    assert one.is_remote


def test_two_sockets_are_two_servers():
    assert parse("unix:///a.sock").server != parse("unix:///b.sock").server


MALFORMED = [
    "http://host",
    "redis://host:hunter2/0",
    "redis://:hunt/er2@host/0",
    "redis://host/hunter2",
    "redis://:hunter2#@host",
    "unix://",
    "redis://[hunter2",
    "",
]


@pytest.mark.parametrize("location", MALFORMED)
def test_an_invalid_address_is_refused_without_quoting_it(location):
    with pytest.raises(ValueError, match=r"^$") as raised:
        parse(location)
    assert raised.value.__suppress_context__


def test_the_repr_of_a_url_has_no_password():
    assert "hunter2" not in repr(parse("redis://ann:hunter2@host/0?x=hunter2"))
