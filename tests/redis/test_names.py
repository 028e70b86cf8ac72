"""The names of all keys in Redis: those of the specification, and our internal ones."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_letters import KEY_LETTERS, fits
from redis.crc import key_slot

from syncguard import LockError, generate_lock_id, make_storage_key
from syncguard.redis.names import BUCKETS, KEY_BUDGET_BYTES, RESERVE_BYTES, Names

ID = "A" * 22
TEXT = st.text(KEY_LETTERS, min_size=1, max_size=120).filter(fits)
KEYS = TEXT.filter(lambda key: not key.startswith(("fence:", "id:")))


def specified(prefix, key):
    return make_storage_key(prefix, key, KEY_BUDGET_BYTES, RESERVE_BYTES)


def refused(function, *arguments):
    with pytest.raises(LockError) as caught:
        function(*arguments)
    assert caught.value.code == "InvalidArgument"
    return str(caught.value)


def test_the_budget_and_the_reserve_are_the_specified_ones():
    assert (KEY_BUDGET_BYTES, RESERVE_BYTES) == (1000, 26)
    assert len(":id:") + 22 == RESERVE_BYTES


def test_a_lock_has_the_names_of_the_specification():
    names = Names("syncguard")
    assert names.of("invoice:42").lock == "syncguard:invoice:42"
    assert names.of("invoice:42").fence == "syncguard:fence:syncguard:invoice:42"
    assert names.index(ID) == f"syncguard:id:{ID}"


@given(st.text(KEY_LETTERS, max_size=500), KEYS)
def test_all_specified_names_come_from_the_specified_function(prefix, key):
    try:
        names = Names(prefix)
    except LockError:
        return
    of_key = names.of(key)
    assert of_key.lock == specified(prefix, key)
    assert of_key.fence == specified(prefix, f"fence:{of_key.lock}")
    assert names.index(ID) == specified(prefix, f"id:{ID}")


@pytest.mark.parametrize("length", [0, 461, 462, 900, 947, 948, 949, 951])
def test_all_names_fit_the_budget_whatever_the_prefix(length):
    names = Names("p" * length)
    of_key = names.of("k" * 512)
    for name in (of_key.lock, of_key.fence, names.index(ID)):
        assert len(name.encode()) <= KEY_BUDGET_BYTES - RESERVE_BYTES


def test_a_prefix_that_leaves_no_room_is_refused_at_once():
    Names("p" * 951)
    assert "too long" in refused(Names, "p" * 952)


@pytest.mark.parametrize(
    "prefix", ["fence", "id", "app:fence", "id:x", "a:id:b", "fence:", "x:id::", ":id", "a::fence"]
)
def test_a_prefix_with_a_reserved_segment_is_refused(prefix):
    assert "fence" in refused(Names, prefix)


@pytest.mark.parametrize(
    "prefix", ["android", "grid:prod", "fences", "my-id", "ID", "", "identity:fenced"]
)
def test_a_prefix_that_is_similar_to_a_reserved_one_is_accepted(prefix):
    assert Names(prefix).of("k").lock == specified(prefix, "k")


@pytest.mark.parametrize("prefix", [None, 1, b"app", ["app"]], ids=repr)
def test_a_prefix_must_be_a_str(prefix):
    refused(Names, prefix)


def test_a_prefix_with_a_lone_surrogate_is_refused():
    refused(Names, "app\ud800")


def test_a_prefix_must_be_in_nfc():
    """The TypeScript client uses it unchanged: normalising it would make two holders."""
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert Names(composed).prefix == composed
    assert "NFC" in refused(Names, decomposed)


# -- prefixes that begin with another prefix ------------------------------------------------------


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("inner", ["shop:eu", "shop:eu:west", "shop:"])
def test_a_key_cannot_reach_the_own_names_of_a_longer_prefix(inner, clustered):
    outer = Names("shop", clustered=clustered)
    names = Names(inner).of("x")
    space = names.space
    own = [space.live, space.tally, names.fence, names.waiting, names.wake, space.index_key(ID)]
    for name in own:
        key = name.removeprefix("shop:")
        assert "own names" in refused(outer.of, key) or key.startswith(("id:", "fence:"))


@pytest.mark.parametrize("inner", ["shop", "shop:eu", "fencing\nshop"])
def test_with_an_empty_prefix_a_key_cannot_reach_the_counter_of_a_longer_one(inner):
    outer = Names("")
    assert "own names" in refused(outer.of, Names(inner).of("x").fence)
    assert outer.of("garden:fence:3").lock == "garden:fence:3"


def test_two_keys_with_one_name_are_one_lock_with_two_counters(make_backend):
    """What the documentation and the Django check say of prefixes that overlap."""
    outer, inner = (make_backend(key_prefix=prefix) for prefix in ("shop", "shop:eu"))
    first = outer.acquire("eu:order", 60_000)
    assert not inner.acquire("order", 60_000).ok
    assert outer.release(first.lock_id).ok
    assert inner.acquire("order", 60_000).fence == first.fence  # not higher


@pytest.mark.parametrize(
    "key", ["user:id:42", "garden:fence:3", "id", "a:id", f"id-{ID}", f"a:id:{ID}b", "fenceless:x"]
)
def test_keys_that_only_resemble_own_names_are_accepted(key):
    assert Names("shop").of(key).lock == f"shop:{key}"


@pytest.mark.parametrize(
    ("length", "clustered", "is_refused"),
    [(227, False, False), (228, False, True), (223, True, False), (224, True, True)],
)
def test_a_key_cannot_reach_a_hashed_name_of_a_long_prefix(length, clustered, is_refused):
    """The counter of the longest key is hashed then: its name ends with 22 characters."""
    names = Names("p" * length, clustered=clustered)
    *space, end = names.of("k" * 512).fence.split(":")
    assert (len(end) == 22) == is_refused
    assert space[0] == ("{" if clustered else "") + "p" * length
    if is_refused:
        assert f"more than {223 if clustered else 227} bytes" in refused(names.of, end)
    else:
        assert names.of(ID).lock.endswith(ID)


# -- hash tags of a cluster -----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["}", "}app"])
def test_a_prefix_that_starts_with_a_brace_is_refused_on_a_cluster(prefix):
    assert "slots" in refused(lambda: Names(prefix, clustered=True))
    assert Names(prefix).of("k").lock == f"{prefix}:k"


@pytest.mark.parametrize("prefix", ["{app}", "app}", "a}b"])
def test_a_prefix_with_a_hash_tag_is_warned_of_on_a_cluster(prefix, caplog):
    names = Names(prefix, clustered=True)
    assert len({key_slot(names.of(f"k{n}").lock.encode()) for n in range(100)}) == 1
    assert "one slot" in caplog.text


@pytest.mark.parametrize("prefix", ["app", "{app", "a{b"])
def test_a_prefix_without_a_hash_tag_spreads_locks_over_the_cluster(prefix, caplog):
    names = Names(prefix, clustered=True)
    assert len({key_slot(names.of(f"k{n}").lock.encode()) for n in range(100)}) > 10
    assert caplog.text == ""


@pytest.mark.parametrize("key", ["fence:x", "id:x", "fence:", "id:", f"id:{ID}", "id::live"])
def test_a_key_that_starts_with_a_reserved_word_is_refused(key):
    assert "start with" in refused(Names("app").of, key)


@pytest.mark.parametrize(
    "key", ["fence", "id", "fences:x", "identity:x", "x:fence:y", "x:id:y", "ID:x"]
)
def test_a_key_that_is_similar_to_a_reserved_one_is_accepted(key):
    assert Names("app").of(key).lock == f"app:{key}"


@given(KEYS)
def test_no_key_collides_with_an_internal_name(key):
    names = Names("app")
    mine = names.of("some key")
    ours = {mine.fence, mine.waiting, mine.wake, mine.space.live, mine.space.tally}
    ours.add(mine.space.queue_head + mine.lock)
    lock = names.of(key).lock
    assert lock not in ours
    assert not re.fullmatch(r"app:id:[A-Za-z0-9_-]{22}", lock)


def test_no_lock_id_collides_with_an_internal_name():
    names = Names("app")
    space = names.of("k").space
    index = names.index(generate_lock_id())
    # Internal names have a second colon where a lock id has a letter.
    for own in (space.live, space.tally, space.waiting_head, space.wake_head, space.queue_head):
        assert own.startswith("app:id::")
    assert not index.startswith("app:id::")


def test_the_names_of_a_key_are_cached():
    names = Names("app")
    assert names.of("k") is names.of("k")


# -- on a cluster ---------------------------------------------------------------------------------


def tag(name):
    return re.match(r"\{([^}]*)\}", name).group(1)


@given(KEYS)
def test_on_a_cluster_all_names_of_a_lock_share_a_hash_tag(key):
    names = Names("app", clustered=True)
    of_key = names.of(key)
    index = names.index(of_key.bucket + generate_lock_id()[1:])
    everything = (of_key.lock, of_key.fence, index, of_key.waiting, of_key.wake, *of_key.space[2:])
    assert {tag(name) for name in everything} == {f"app:{of_key.bucket}"}


def test_on_a_cluster_the_lock_id_determines_the_names_of_its_lock():
    names = Names("app", clustered=True)
    of_key = names.of("k")
    assert names.space_of(of_key.bucket + "x" * 21) is of_key.space


def test_on_a_cluster_keys_spread_over_64_buckets():
    names = Names("app", clustered=True)
    assert {names.of(f"key {n}").bucket for n in range(2_000)} == set(BUCKETS)
    assert len(names.spaces()) == 64
    assert re.fullmatch(r"[A-Za-z0-9_-]{64}", BUCKETS)


def test_without_a_cluster_there_is_one_space_and_no_bucket():
    names = Names("app")
    assert len(names.spaces()) == 1
    assert names.of("k").bucket == ""


# -- the reference --------------------------------------------------------------------------------

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "redis-storage.md"
EXAMPLE = re.compile(r"^\| (\d+) bytes \| (\d+) bytes \| (\w+) \|$", re.MULTILINE)


@pytest.mark.parametrize(
    ("prefix_bytes", "key_bytes", "stored"), EXAMPLE.findall(REFERENCE.read_text("utf-8"))
)
def test_the_limits_are_documented_with_examples_that_are_true(prefix_bytes, key_bytes, stored):
    prefix, key = "p" * int(prefix_bytes), "k" * int(key_bytes)
    if stored == "refused":
        refused(Names, prefix)
    else:
        assert (Names(prefix).of(key).lock == f"{prefix}:{key}") == (stored == "plain")


def test_the_cost_of_cleanup_is_documented():
    text = REFERENCE.read_text("utf-8")
    assert "cleanup_in_is_locked=True" in text
    assert "In tests" in text
