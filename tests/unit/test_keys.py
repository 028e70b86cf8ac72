"""Keys, storage keys, hashes, lock ids, fences and labels: pure functions, no server."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_letters import KEY_LETTERS, fits

from syncguard import (
    MAX_KEY_LENGTH_BYTES,
    LockError,
    format_fence,
    generate_lock_id,
    hash_key,
    make_storage_key,
    normalize_and_validate_key,
    validate_lock_id,
)
from syncguard.constants import MAX_TTL_MS
from syncguard.keys import (
    keyed_hash,
    make_fence_key,
    validate_holder,
    validate_key_prefix,
    validate_ttl_ms,
)

TEXT = st.text(KEY_LETTERS, min_size=1, max_size=300)
PREFIX = st.text(KEY_LETTERS, max_size=60)


def refused(function, *arguments):
    with pytest.raises(LockError) as caught:
        function(*arguments)
    assert caught.value.code == "InvalidArgument"
    return str(caught.value)


# -- normalising and validating keys --------------------------------------------------------------


@given(TEXT)
def test_a_normalised_key_is_in_nfc_and_normalising_again_changes_nothing(key):
    try:
        normalized = normalize_and_validate_key(key)
    except LockError:
        assert len(unicodedata.normalize("NFC", key).encode()) > MAX_KEY_LENGTH_BYTES
    else:
        assert normalized == unicodedata.normalize("NFC", key)
        assert normalize_and_validate_key(normalized) == normalized


@given(TEXT.filter(fits))
def test_texts_that_are_equal_in_nfc_are_one_key(key):
    forms = {unicodedata.normalize(form, key) for form in ("NFC", "NFD")}
    assert len({normalize_and_validate_key(form) for form in forms}) == 1


@pytest.mark.parametrize(
    "key",
    ["k" * 512, "é" * 256, "日" * 170 + "xx", "🔒" * 128],
    ids=["one byte", "two", "three", "four"],
)
def test_a_key_of_512_bytes_fits(key):
    assert len(key.encode()) == 512
    assert normalize_and_validate_key(key) == key
    assert "512" in refused(normalize_and_validate_key, key + "x")


def test_the_bytes_are_counted_after_normalising():
    assert normalize_and_validate_key("e\N{COMBINING ACUTE ACCENT}" * 256) == "é" * 256


def test_composition_of_four_code_points_into_one_still_fits():
    # The longest known composition: a Greek letter with three marks.
    decomposed = unicodedata.normalize(
        "NFD", "\N{GREEK SMALL LETTER ALPHA WITH PSILI AND VARIA AND YPOGEGRAMMENI}"
    )
    assert len(decomposed) == 4
    assert len(normalize_and_validate_key(decomposed * 170)) == 170


@pytest.mark.parametrize("key", ["", None, 1, 1.5, True, b"key", ["key"], ...], ids=repr)
def test_a_key_that_is_empty_or_no_text_is_refused(key):
    refused(normalize_and_validate_key, key)


@pytest.mark.parametrize("key", ["\0", "invoice:\0", "\0日本語"], ids=ascii)
def test_a_key_with_a_nul_is_refused_so_that_keys_are_portable(key):
    assert "NUL" in refused(normalize_and_validate_key, key)


def test_a_prefix_with_a_nul_is_refused():
    assert "NUL" in refused(validate_key_prefix, "my\0app")


def test_a_lone_surrogate_is_refused_and_the_error_does_not_contain_it():
    with pytest.raises(LockError) as caught:
        normalize_and_validate_key("secret\ud800")
    assert caught.value.code == "InvalidArgument"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("key", ["k" * 513, "k" * 10**6, "secret\ud800"], ids=lambda k: k[:6])
def test_the_error_names_the_rule_and_not_the_key(key):
    assert key[:6] not in refused(normalize_and_validate_key, key)


def test_a_key_that_is_far_too_long_is_refused_before_it_is_normalised(monkeypatch):
    """Else an attacker could make the server normalise megabytes."""

    def normalize(_form, _text):
        raise AssertionError("the key was normalised")

    monkeypatch.setattr("syncguard.keys.unicodedata", SimpleNamespace(normalize=normalize))
    refused(normalize_and_validate_key, "\u00e9" * 10**6)


# -- storage keys ---------------------------------------------------------------------------------


@given(PREFIX, TEXT)
def test_a_storage_key_leaves_the_reserve_free(prefix, key):
    made = make_storage_key(prefix, key, 1000, 26)
    assert len(made.encode()) + 26 <= 1000


@given(PREFIX, TEXT, st.integers(min_value=300, max_value=900))
def test_a_storage_key_is_the_plain_form_exactly_when_that_fits(prefix, key, limit):
    head = unicodedata.normalize("NFC", prefix).rstrip(":")
    full = (head + ":" if head else "") + unicodedata.normalize("NFC", key)
    made = make_storage_key(prefix, key, limit, 26)
    assert (made == full) == (len(full.encode()) + 26 <= limit)


@given(PREFIX, TEXT)
def test_the_same_input_gives_the_same_storage_key_in_every_form(prefix, key):
    made = make_storage_key(prefix, key, 400, 26)
    decomposed = (unicodedata.normalize("NFD", prefix), unicodedata.normalize("NFD", key))
    assert make_storage_key(*decomposed, 400, 26) == made


def test_a_key_that_does_not_fit_becomes_128_bits_of_the_sha_256_of_all_of_it():
    prefix, key = "p" * 480, "k" * 512
    digest = hashlib.sha256(f"{prefix}:{key}".encode()).digest()[:16]
    hashed = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(hashed) == 22
    assert make_storage_key(prefix, key, 1000, 26) == f"{prefix}:{hashed}"


def test_the_longest_plain_form_ends_where_the_reserve_begins():
    assert make_storage_key("p" * 461, "k" * 512, 1000, 26) == "p" * 461 + ":" + "k" * 512
    assert make_storage_key("p" * 462, "k" * 512, 1000, 26) != "p" * 462 + ":" + "k" * 512


def test_the_limit_counts_bytes_and_not_letters():
    assert make_storage_key("", "é" * 50, 100, 0) == "é" * 50
    assert len(make_storage_key("", "é" * 51, 100, 0)) == 22


def test_the_same_key_under_two_prefixes_has_two_hashes():
    one, other = (make_storage_key(p * 480, "k" * 512, 1000, 26)[-22:] for p in "ab")
    assert one != other


@pytest.mark.parametrize(
    ("prefix", "made"), [("app:", "app:k"), ("app:::", "app:k"), ("", "k"), (":", "k")]
)
def test_colons_at_the_end_of_the_prefix_do_not_count(prefix, made):
    assert make_storage_key(prefix, "k", 1000, 26) == made


def test_a_prefix_that_leaves_no_room_for_a_hash_is_refused():
    assert make_storage_key("p" * 951, "k" * 512, 1000, 26).startswith("p" * 951 + ":")
    refused(make_storage_key, "p" * 952, "k" * 512, 1000, 26)
    refused(make_storage_key, "p" * 980, "k", 1000, 26)


def test_a_prefix_with_a_lone_surrogate_is_refused():
    refused(make_storage_key, "a\ud800", "k", 1000, 26)


def test_the_fence_key_is_derived_from_the_storage_key():
    prefix, key = "p" * 480, "k" * 512
    base = make_storage_key(prefix, key, 1000, 26)
    derived = make_storage_key(prefix, f"fence:{base}", 1000, 26)
    assert make_fence_key(prefix, base, 1000, 26) == derived
    assert derived != make_storage_key(prefix, f"fence:{key}", 1000, 26)


@given(st.lists(TEXT, min_size=2, max_size=8, unique_by=lambda k: unicodedata.normalize("NFC", k)))
def test_each_key_has_a_fence_counter_of_its_own(keys):
    # A long prefix, so that some of the names are hashed and some are not.
    prefix = "p" * 300
    bases = [make_storage_key(prefix, key, 1000, 26) for key in keys]
    assert len({make_fence_key(prefix, base, 1000, 26) for base in bases}) == len(keys)


# -- hashes ---------------------------------------------------------------------------------------


@given(st.text())
def test_a_hash_has_24_lower_case_hex_digits(value):
    assert re.fullmatch(r"[0-9a-f]{24}", hash_key(value))


@given(TEXT)
def test_a_hash_does_not_depend_on_the_form_of_the_text(value):
    assert hash_key(unicodedata.normalize("NFD", value)) == hash_key(value)


def test_a_hash_is_computed_over_utf_16_code_units():
    # One letter, two units: U+1F512 is D83D DD12.
    expected = [0, 0, 0]
    for unit in (0xD83D, 0xDD12):
        for i, (by, times) in enumerate(((31, 1), (127, 3), (2047, 7))):
            expected[i] = (by * expected[i] + times * unit) % 2**32
    assert hash_key("\N{LOCK}") == "".join(f"{part:08x}" for part in expected)


@pytest.mark.parametrize("value", [None, 1, b"x"], ids=repr)
def test_only_text_has_a_hash(value):
    refused(hash_key, value)


def test_a_keyed_hash_looks_like_a_plain_one_and_depends_on_the_secret():
    one, other = keyed_hash(b"secret", "a"), keyed_hash(b"another", "a")
    assert re.fullmatch(r"[0-9a-f]{24}", one)
    assert len({one, other, hash_key("a")}) == 3


def test_a_keyed_hash_is_96_bits_of_hmac_sha_256():
    # From RFC 4231, test case 2.
    assert keyed_hash(b"Jefe", "what do ya want for nothing?") == "5bdcc146bf60754e6a042426"


def test_a_keyed_hash_does_not_depend_on_the_form_of_the_text():
    assert keyed_hash(b"secret", "e\u0301") == keyed_hash(b"secret", "\u00e9")


# -- lock ids -------------------------------------------------------------------------------------


def test_lock_ids_are_128_bits_from_the_systems_generator(monkeypatch):
    asked = []
    monkeypatch.setattr("os.urandom", lambda n: asked.append(n) or bytes(range(n)))
    assert generate_lock_id() == "AAECAwQFBgcICQoLDA0ODw"
    assert asked == [16]


def test_lock_ids_are_valid_and_never_the_same():
    ids = [generate_lock_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [validate_lock_id(lock_id) for lock_id in ids] == ids


@given(st.from_regex(r"\A[A-Za-z0-9_-]{22}\Z"))
def test_every_22_base64url_letters_are_a_lock_id(lock_id):
    assert validate_lock_id(lock_id) == lock_id


@given(st.text(max_size=30).filter(lambda t: not re.fullmatch(r"[A-Za-z0-9_-]{22}", t)))
def test_other_text_is_not_a_lock_id(text):
    refused(validate_lock_id, text)


@pytest.mark.parametrize(
    "lock_id",
    [
        "A" * 22 + "\n",
        "\n" + "A" * 22,
        "A" * 21,
        "A" * 23,
        "A" * 21 + "=",
        "é" * 22,
        b"A" * 22,
        None,
    ],
    ids=repr,
)
def test_a_malformed_lock_id_is_refused_without_being_shown(lock_id):
    assert repr(lock_id) not in refused(validate_lock_id, lock_id)


# -- TTLs, labels, fences -------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_ms", [1, 30_000, MAX_TTL_MS])
def test_a_ttl_is_a_whole_number_of_milliseconds(ttl_ms):
    assert validate_ttl_ms(ttl_ms) == ttl_ms


@pytest.mark.parametrize(
    "ttl_ms", [0, -1, 1.0, True, "1", None, float("nan"), MAX_TTL_MS + 1, 10**40], ids=repr
)
def test_other_values_are_refused_as_a_ttl(ttl_ms):
    assert refused(validate_ttl_ms, ttl_ms, "max_hold_ms").startswith("max_hold_ms")


@pytest.mark.parametrize("holder", [None, "worker 7", "höst", "h" * 256])
def test_a_label_is_short_printable_text_or_nothing(holder):
    assert validate_holder(holder) == holder


@pytest.mark.parametrize("holder", ["", "a\nb", "a\tb", "\x1b[31m", "h" * 257, "é" * 129, 7, b"h"])
def test_other_values_are_refused_as_a_label(holder):
    refused(validate_holder, holder)


FENCES = st.integers(min_value=0, max_value=10**15 - 1)


@given(FENCES, FENCES)
def test_comparing_fences_compares_their_numbers(one, other):
    assert (format_fence(one) < format_fence(other)) == (one < other)
    assert len(format_fence(one)) == 15
    assert int(format_fence(one)) == one


@pytest.mark.parametrize("value", [-1, 10**15, 1.0, True, "1", None], ids=repr)
def test_a_number_that_does_not_fit_15_digits_is_refused_as_a_fence(value):
    refused(format_fence, value)
