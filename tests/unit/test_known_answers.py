"""The pure functions return the same results as every other implementation of SyncGuard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from syncguard import LockError, format_fence, hash_key, make_storage_key

ANSWERS = json.loads(Path(__file__).with_name("known-answers.json").read_text("utf-8"))


@pytest.mark.parametrize("answer", ANSWERS["hash_key"], ids=lambda a: ascii(a["key"][:20]))
def test_the_hash_of_a_key_is_the_known_one(answer):
    assert hash_key(answer["key"]) == answer["hash"]


@pytest.mark.parametrize(
    "answer",
    [a for a in ANSWERS["make_storage_key"] if "error" not in a],
    ids=lambda a: ascii(a["prefix"][:10] + "/" + a["key"][:10]),
)
def test_the_storage_key_is_the_known_one(answer):
    made = make_storage_key(answer["prefix"], answer["key"], answer["limit"], answer["reserve"])
    assert made == answer["storage_key"]


@pytest.mark.parametrize("answer", [a for a in ANSWERS["make_storage_key"] if "error" in a])
def test_the_storage_key_that_cannot_be_made_is_the_known_error(answer):
    with pytest.raises(LockError) as caught:
        make_storage_key(answer["prefix"], answer["key"], answer["limit"], answer["reserve"])
    assert caught.value.code == answer["error"]


@pytest.mark.parametrize("answer", ANSWERS["format_fence"], ids=lambda a: a["fence"])
def test_the_fence_is_the_known_one(answer):
    assert format_fence(answer["value"]) == answer["fence"]


def test_every_kind_of_known_answer_is_tested():
    assert set(ANSWERS) == {"hash_key", "make_storage_key", "format_fence"}
