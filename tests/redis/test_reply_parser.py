"""Parses replies from bytes: complete, in pieces, several at once."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import NoScriptError

from syncguard.redis._transport.reply_parser import ReplyParser

WIRE = b"*2\r\n:1\r\n:1794802520752\r\n:-1\r\n$3\r\nabc\r\n$-1\r\n+OK\r\n_\r\n*-1\r\n*0\r\n"
REPLIES = [[1, 1794802520752], -1, b"abc", None, b"OK", None, None, []]


def test_complete_replies_are_parsed() -> None:
    assert ReplyParser().feed(WIRE) == REPLIES


@given(st.lists(st.integers(0, len(WIRE)), max_size=20))
def test_replies_that_arrive_in_pieces_are_parsed_the_same(cuts: list[int]) -> None:
    stream, replies, start = ReplyParser(), [], 0
    for cut in [*sorted(cuts), len(WIRE)]:
        replies += stream.feed(WIRE[start:cut])
        start = cut
    assert replies == REPLIES


def test_an_error_reply_is_returned_and_not_raised() -> None:
    unknown, other, after = ReplyParser().feed(b"-NOSCRIPT none\r\n-ERR bad\r\n:1\r\n")
    assert isinstance(unknown, NoScriptError)
    assert isinstance(other, redis.ResponseError)
    assert not isinstance(other, NoScriptError)
    assert after == 1


def test_an_error_has_the_same_text_as_in_redis_py() -> None:
    """So that ``error_code`` can read both."""
    (error,) = ReplyParser().feed(b"-ERR Error running script (f_0): @user_script:9: READONLY\r\n")
    assert str(error).startswith("Error running script")


@pytest.mark.parametrize("wire", [b"?what\r\n", b":0*2\r\n", b"*x\r\n", b"$1-\r\nab\r\n"])
def test_bytes_that_are_no_reply_raise_an_error(wire: bytes) -> None:
    with pytest.raises(redis.InvalidResponse):
        ReplyParser().feed(wire)
