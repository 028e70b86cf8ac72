"""URLs with several hosts, also on Pythons whose ``urlsplit`` refuses some of them."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from syncguard import redacted_text, split_url
from syncguard.backend import RedactedUrl
from syncguard.redis import replica_acknowledgement, server_group

URLS = [
    "redis://ann:pw@[::1]:7000/3?x=1&y=#z",
    "redis+cluster://h1:7000,h2:7001",
    "REDIS+sentinel://h1,h2:26380/orders/0?db=2",
    "unix:///run/redis.sock?db=2",
    "postgresql://db.example?host=a://b",
    "redis://h1\n:7000/\t0",
    "redis:h1",
    "//h1/0",
    "h1",
    "",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_split_as_by_the_standard_library(url):
    assert split_url.split_url(url) == urlsplit(url)


@pytest.fixture
def newer_python(monkeypatch):
    """``urlsplit`` as of CPython 3.11.12, 3.12.9 and 3.13.2."""

    def strict(url):
        parts = urlsplit(url)
        if parts.netloc.rpartition("@")[2].partition("[")[0] and "[" in parts.netloc:
            raise ValueError("Invalid IPv6 URL")
        return parts

    for module in (split_url, redacted_text, server_group):
        monkeypatch.setattr(module, "urlsplit", strict)


@pytest.mark.usefixtures("newer_python")
def test_an_ipv6_address_may_have_any_place_in_a_list_of_hosts():
    hosts = "h1:7000,[::1]:7001,[::2]"
    group = server_group.parse_group(f"redis+cluster://ann:pw@{hosts}")
    assert group.hosts == (("h1", 7000), ("::1", 7001), ("::2", 6379))
    assert repr(RedactedUrl(f"redis+cluster://ann:pw@{hosts}")) == f"'redis+cluster://{hosts}'"
    url = f"redis+sentinel://{hosts}/orders/0"
    assert replica_acknowledgement.options_of_url(f"{url}?min_replicas=1") == (
        url,
        {"min_replicas": 1},
    )
