"""Strings whose ``repr`` hides secrets."""

from __future__ import annotations

import pprint

import pytest

from syncguard.backend import RedactedUrl, Secret

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


@pytest.mark.parametrize(
    "location",
    [
        "redis://:hunter2@host/0",
        "redis://ann:hunter2@host/0",
        "redis://host/0?password=hunter2",
        "unix:///run/redis.sock?password=hunter2",
        "postgres://ann:1234/hunter2@host/shop",
        "redis://ann:1234?hunter2@host/0",
        "redis+sentinel://ann:hunter2@h1:26379,h2:26379/orders/0",
        "redis+sentinel://ann:1,2/hunter2@h1:26379,h2:26379/orders/0",
        "redis+cluster://ann:1,hunter2@h1:7000,h2:hunter2",
        *MALFORMED,
    ],
)
def test_the_repr_of_a_url_has_no_password(location):
    shown = repr(RedactedUrl(location)) + pprint.pformat(
        {"LOCATION": RedactedUrl(location)}, width=10
    )
    assert "hunter2" not in shown
    assert "hunt" not in shown


def test_a_redacted_url_is_equal_to_the_original_text():
    location = RedactedUrl("redis://:hunter2@host/0")
    assert location == "redis://:hunter2@host/0"
    assert repr(location) == "'redis://host/0'"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://ann:pw@[::1]:7000/3?x=1", "rediss://[::1]:7000/3"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock"),
        ("dict://", "********"),
        ("redis+cluster://ann:pw@h1:7000,[::1]:7001", "redis+cluster://h1:7000,[::1]:7001"),
        ("redis+sentinel://h1,h2:26380/orders/0", "redis+sentinel://h1,h2:26380/********"),
        ("postgresql://ann:pw@db.example/shop", "postgresql://db.example/********"),
        ("redis://ann:1234?x@host/0", "********"),
        ("plain text", "********"),
    ],
)
def test_the_repr_of_a_url_shows_what_is_not_secret(url, shown):
    assert repr(RedactedUrl(url)) == repr(shown)


def test_the_repr_of_a_secret_is_a_mask():
    assert repr((Secret("hunter2"),)) == "('********',)"
    assert Secret("hunter2") == "hunter2"
